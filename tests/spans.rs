//! What a program's own `tracing` subscriber sees of the library. Alone in its process: whether a span is wanted is
//! decided once for all threads, so that tests without a subscriber would be in its way.

mod support;

use std::sync::{Arc, Mutex};

use forebay::Request;
use support::{build, engine, generate};
use tracing::Subscriber;
use tracing::span::{Attributes, Id};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context as LayerContext, SubscriberExt};

/// Names of the spans that were opened, in their order.
#[derive(Clone, Default)]
struct Opened(Arc<Mutex<Vec<&'static str>>>);

impl<S: Subscriber> Layer<S> for Opened {
    fn on_new_span(&self, attributes: &Attributes<'_>, _: &Id, _: LayerContext<'_, S>) {
        let mut names = self.0.lock().expect("no thread panicked");
        names.push(attributes.metadata().name());
    }
}

#[test]
fn a_subscriber_sees_the_edges_of_the_library() {
    let opened = Opened::default();
    let subscriber = tracing_subscriber::registry().with(opened.clone());
    tracing::subscriber::with_default(subscriber, || {
        let request = Request::text("Once upon a time").max_tokens(4);
        generate(&build(engine(None)), request);
    });
    let names = opened.0.lock().expect("no thread panicked");
    let edges: Vec<&str> = names
        .iter()
        .copied()
        .filter(|name| EDGES.contains(name))
        .collect();
    assert_eq!(edges, EDGES, "{names:?}");
}

const EDGES: [&str; 4] = ["build", "plan", "load", "request"];
