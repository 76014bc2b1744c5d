//! The report as one JSON object, for programs. Field names are a contract (docs/cli.md, JSON).

use serde_json::{Map, Value, json};

use crate::ledger::{Charged, State};
use crate::path::CriticalPath;
use crate::record::Reason;
use crate::report::{Bubble, Report, StageTime};

impl Report {
    /// All that the tables show.
    pub fn to_json(&self) -> Value {
        let cores = self.cores.iter().map(|core| {
            json!({
                "name": core.name,
                "ns": core.charged.total(),
                "bubbles": core.charged.fractions(),
                "outside_ns": core.outside_ns,
                "overwritten": core.overwritten,
                "overlaps": core.overlaps,
            })
        });
        let stages = self.stages.iter();
        let stages: Map<String, Value> = stages.map(|(n, time)| (n.clone(), stage(time))).collect();
        json!({
            "bubbles": self.bubbles(),
            "cores": cores.collect::<Vec<_>>(),
            "stages": stages,
            "reads": {
                "reads": self.reads.reads,
                "bytes": self.reads.bytes,
                "busy_ns": self.reads.busy_ns,
                "latency_ns": self.reads.latency_ns,
            },
            "tokens": self.tokens,
            "paths": self.paths.as_ref().map(|paths| json!({
                "median": path(&paths.median),
                "p99": path(&paths.p99),
            })),
            "longest": self.longest.iter().map(bubble).collect::<Vec<_>>(),
        })
    }
}

fn stage(time: &StageTime) -> Value {
    json!({
        "slices": time.slices,
        "busy_ns": time.busy_ns,
        "clusters": time.clusters,
        "bytes": time.bytes,
        "hits": time.hits,
        "misses": time.misses,
        "waited_ns": waits(&time.waited),
    })
}

/// Nanoseconds by cause.
fn waits(charged: &Charged) -> Map<String, Value> {
    let waited = |reason: Reason| charged.get(State::Stall(reason));
    let all = Reason::ALL.into_iter();
    all.map(|reason| (reason.name().to_owned(), waited(reason).into()))
        .collect()
}

fn path(path: &CriticalPath) -> Value {
    let links = path.by_link().into_iter();
    let links = links.map(|(link, time)| {
        json!({ "link": link.label(), "count": time.count, "ns": time.ns, "is_io": link.is_io() })
    });
    json!({
        "token": path.token.number,
        "ns": path.token.ns(),
        "io_share": path.io_share(),
        "links": links.collect::<Vec<_>>(),
    })
}

fn bubble(bubble: &Bubble) -> Value {
    let stage = bubble.stage.as_ref();
    json!({
        "core": bubble.core,
        "reason": bubble.reason,
        "start_ns": bubble.start_ns,
        "ns": bubble.ns,
        "stage": stage.map(|(name, _)| name),
        "layer": stage.map(|(_, layer)| layer),
        "read": bubble.cause.as_ref().map(|read| json!({
            "lane": read.lane,
            "first_cluster": read.args.first_cluster,
            "bytes": read.args.bytes,
            "ns": read.end_ns - read.start_ns,
        })),
    })
}
