//! Continues a text with a model, or with the embedded demo model: `cargo run --release --example story -- [MODEL]`.

use std::io::Write;

use forebay::{Engine, Request, StreamItem, demo};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let builder = match std::env::args_os().nth(1) {
        Some(model) => Engine::builder().model(model),
        None => Engine::builder(),
    };
    // For the whole process: what does not fit stays on disk.
    let engine = builder.memory(1 << 30).build()?;
    let mut session = engine.session();
    let mut out = std::io::stdout();
    write!(out, "{}", demo::PROMPT)?;
    let request = Request::text(demo::PROMPT)
        .max_tokens(120)
        .stop(["The end"]);
    for item in session.generate(request)?.blocking() {
        match item? {
            StreamItem::Token(token) => write!(out, "{}", token.text)?,
            StreamItem::Rest(text) => write!(out, "{text}")?,
            StreamItem::Done(statistics) => {
                writeln!(
                    out,
                    "\n\n{:?}: {}",
                    statistics.finish_reason,
                    statistics.summary()
                )?;
            }
            _ => {}
        }
        out.flush()?;
    }
    // The session remembers: two continuations of the same beginning.
    for more in [" But then", " So they"] {
        let (text, _) = session
            .fork()
            .generate(Request::text(more).max_tokens(20))?
            .finish()?;
        writeln!(out, "...{more}{text}")?;
    }
    Ok(())
}
