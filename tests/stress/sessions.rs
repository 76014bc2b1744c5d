//! Two conversations at once on one engine whose neurons do not fit.

use forebay::{Engine, Request, Session};

use crate::subject::{length, sparse_model};
use crate::support::{build, engine};

const TURNS: usize = 4;
const TEXTS: [&str; 2] = ["abc def", "the quick brown fox jumps"];

/// An engine with memory for a part of the neurons.
fn small() -> Engine {
    build(engine(Some(sparse_model())).weight_memory(14 << 20))
}

/// The tokens and hashes of a conversation.
fn talk(session: &mut Session, text: &str) -> Vec<(Vec<u32>, String)> {
    let turn = |_| {
        let mut request = Request::text(text).max_tokens(10);
        request.ignore_eog = true;
        let stream = session.generate(request).expect("a good request");
        let (_, done) = stream.finish().expect("no fault");
        (done.tokens, done.logits_hash)
    };
    (0..TURNS).map(turn).collect()
}

#[test]
fn two_sessions_at_once_say_what_each_says_alone() {
    let alone = TEXTS.map(|text| talk(&mut small().session(), text));
    let engine = small();
    for _ in 0..2 * length() {
        let together = std::thread::scope(|scope| {
            let threads = TEXTS.map(|text| {
                let mut session = engine.session();
                scope.spawn(move || talk(&mut session, text))
            });
            threads.map(|thread| thread.join().expect("no panic"))
        });
        assert_eq!(together, alone);
    }
}
