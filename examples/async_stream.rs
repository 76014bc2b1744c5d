//! A stream in an async program: the engine is built on a thread for blocking work, tokens come as items of a
//! `futures::Stream`, and a generation that takes too long is cancelled, with statistics of what there was.

use std::time::Duration;

use forebay::{Engine, Request, SamplerConfig, StreamItem, demo};
use futures_util::StreamExt;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let builder = Engine::builder().on_preparation(|step| eprintln!("{step:?}"));
    let engine = tokio::task::spawn_blocking(move || builder.build()).await??;
    let mut sampler = SamplerConfig::default();
    sampler.temperature = 0.7;
    let request = Request::text(demo::PROMPT).sampler(sampler).seed(7);
    let mut stream = engine.session().generate(request)?;
    let deadline = tokio::time::sleep(Duration::from_millis(200));
    tokio::pin!(deadline);
    let mut late = false;
    loop {
        let item = tokio::select! {
            item = stream.next() => item,
            () = &mut deadline, if !late => {
                late = true;
                stream.cancel();
                continue;
            }
        };
        match item.transpose()? {
            Some(StreamItem::Token(token)) => print!("{}", token.text),
            Some(StreamItem::Rest(text)) => print!("{text}"),
            Some(StreamItem::Done(statistics)) => println!("\n\n{}", statistics.summary()),
            Some(_) => {}
            None => return Ok(()),
        }
    }
}
