//! Where a checkpoint has the parameters of its rotation. The versions of transformers disagree about several of these
//! places; what they would read differently is refused.

use std::collections::BTreeMap;

use serde_json::Value;

use super::super::Metadata;
use crate::arch::fields::Fields;
use crate::arch::neutral;
use crate::error::Result;
use crate::limits::MAX_CONTEXT;

/// The parameters in files of transformers 5.
pub(super) const PARAMETERS: &str = "rope_parameters";
/// The parameters in earlier files.
const SCALING: &str = "rope_scaling";
/// The base, inside of either or beside it.
pub(super) const THETA: &str = "rope_theta";
/// The context before an extension, inside of either or beside it.
pub(super) const ORIGINAL: &str = "original_max_position_embeddings";

/// The parameters of all layers, or of those of one type where each type has its own.
pub(super) fn parameters(m: &Metadata<'_>, layer_type: Option<&str>) -> Result<Option<Fields>> {
    let new = of_layer_type(m, layer_type)?;
    let old = filled(m, SCALING)?;
    if let Some(old) = &old {
        refuse_another_theta(m, old)?;
    }
    match (new, old) {
        (Some(new), Some(old)) if !agree(m, &new, &old) => {
            let value = format!("another rotation than that of {PARAMETERS}");
            let remedy = "remove the one that does not apply";
            Err(m.unsupported(("", SCALING), value, remedy))
        }
        (new, old) => Ok(new.or(old)),
    }
}

/// The name of the field that says how the rotation is scaled, and what it says.
pub(super) fn scaling_type(p: &Fields) -> Result<(&'static str, Option<&str>)> {
    let field = match p.get("rope_type") {
        Some(_) => "rope_type",
        None => "type",
    };
    Ok((field, p.optional_str(field)?))
}

/// The context before an extension: inside, beside, or that of the model.
pub(super) fn original_context(m: &Metadata<'_>, p: &Fields) -> Result<usize> {
    let inside = p.optional_size(ORIGINAL, MAX_CONTEXT)?;
    let beside = m.optional_context("", ORIGINAL)?;
    if let (Some(inside), Some(beside)) = (inside, beside)
        && inside != beside
    {
        let remedy =
            format!("beside the object it is {beside}, given or assumed: give both the same");
        return Err(p.unsupported(ORIGINAL, inside.to_string(), remedy));
    }
    inside.or(beside).map_or_else(|| m.context(), Ok)
}

/// With YaRN, transformers 4 reads the original context only inside.
pub(super) fn refuse_original_beside(m: &Metadata<'_>, p: &Fields) -> Result<()> {
    let beside = m.optional_context("", ORIGINAL)?;
    match beside.filter(|_| p.get(ORIGINAL).is_none()) {
        Some(beside) if beside != m.context()? => {
            let remedy = format!("give {} instead", p.full_name(ORIGINAL));
            Err(m.unsupported(("", ORIGINAL), beside.to_string(), &remedy))
        }
        _ => Ok(()),
    }
}

/// An object that says something.
fn filled(m: &Metadata<'_>, name: &str) -> Result<Option<Fields>> {
    let object = m.fields().optional_object(name)?;
    Ok(object.filter(|p| p.values().any(|(_, v)| !v.is_null())))
}

fn of_layer_type(m: &Metadata<'_>, layer_type: Option<&str>) -> Result<Option<Fields>> {
    let Some(p) = filled(m, PARAMETERS)? else {
        return Ok(None);
    };
    let by_type = p.values().any(|(_, v)| v.is_object());
    match layer_type {
        None if by_type => {
            let remedy = "one for all layers is";
            Err(p.unsupported("*", "a rotary embedding per layer type", remedy))
        }
        None => Ok(Some(p)),
        Some(kind) if by_type => Ok(Some(
            p.optional_object(kind)?.ok_or_else(|| p.missing(kind))?,
        )),
        Some(kind) => {
            refuse_unread(m, &p, kind)?;
            Ok(None)
        }
    }
}

/// transformers reads only the parameters of layer types where an architecture has those.
fn refuse_unread(m: &Metadata<'_>, p: &Fields, kind: &str) -> Result<()> {
    let theta = m.fields().get(THETA).and_then(Value::as_f64);
    let mut said = p.values().filter(|(_, value)| !value.is_null());
    let unread = said.find(|(name, value)| match name.as_str() {
        "rope_type" | "type" => *value != "default",
        THETA => value.as_f64() != theta,
        _ => true,
    });
    match unread {
        None => Ok(()),
        Some((name, value)) => {
            let remedy = format!("it is in {PARAMETERS}.{kind}");
            Err(p.unsupported(name, neutral::describe(value), remedy))
        }
    }
}

/// Of two bases, transformers 4 takes the one beside the object, and 5 the one inside.
fn refuse_another_theta(m: &Metadata<'_>, old: &Fields) -> Result<()> {
    let beside = m.fields().given(THETA).and_then(Value::as_f64);
    match (old.optional_f32(THETA)?, beside) {
        (Some(inside), Some(beside)) if inside != beside as f32 => {
            let remedy = format!("{THETA} beside it is {beside}: give both the same");
            Err(old.unsupported(THETA, inside.to_string(), remedy))
        }
        _ => Ok(()),
    }
}

/// Whether both objects say the same with the fields beside them.
fn agree(m: &Metadata<'_>, new: &Fields, old: &Fields) -> bool {
    let beside = m.fields().get(THETA);
    let [new, old] = [new, old].map(|p| {
        let mut said = said(p);
        if let Some(theta) = beside {
            said.entry(THETA).or_insert(theta);
        }
        said
    });
    let mut both = new.iter().zip(&old);
    new.len() == old.len() && both.all(|((a, v), (b, w))| a == b && same(v, w))
}

/// What an object says: the type has one name, and its default says nothing.
fn said(p: &Fields) -> BTreeMap<&str, &Value> {
    let typed = p.get("rope_type").is_some();
    let named = p.values().filter_map(|(name, value)| match name.as_str() {
        "type" if typed => None,
        "type" => Some(("rope_type", value)),
        other => Some((other, value)),
    });
    let is_default = |name: &str, value: &Value| name == "rope_type" && *value == "default";
    named
        .filter(|&(name, value)| !value.is_null() && !is_default(name, value))
        .collect()
}

/// Whether two values are the same, however their numbers are written.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        _ => a == b,
    }
}
