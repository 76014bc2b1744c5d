//! Forebay
