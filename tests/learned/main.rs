//! What is learned about a model, from texts: predictors, thresholds, profiles of neurons and experts, importance
//! matrices, and how much an approximation changes.

#[path = "../program/mod.rs"]
mod program;
#[path = "../support/mod.rs"]
mod support;

mod importance;
mod learn;
mod quality;
mod routing;
