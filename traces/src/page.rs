//! The report as one HTML page, with drawings.
//!
//! Nothing outside the page is needed. Text from the trace is escaped, as element text or inside JSON.
//! Headline, bars and tables are in the page itself; a script draws the timelines of the chosen tokens.

mod scene;
mod sections;

use std::fmt;

use crate::events::Trace;
use crate::headline::Headline;
use crate::report::Report;
use scene::Scene;

/// The trace has no whole token to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the trace contains no whole token to draw (a generated token from its first layer to the output head); \
     record one with `forebay run -n 2 --trace`, or fewer tokens if older records were overwritten"
)]
pub struct NoToken;

/// Text as an element's content or an attribute's value.
struct Escaped<T>(T);

impl<T: fmt::Display> fmt::Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.to_string().chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c => write!(f, "{c}")?,
            }
        }
        Ok(())
    }
}

/// The page of `trace`, which was read from a file called `name`, and of its analysis.
///
/// # Errors
/// The trace has no whole token.
pub fn page(trace: &Trace, report: &Report, name: &str) -> Result<String, NoToken> {
    let paths = report.paths.as_ref().ok_or(NoToken)?;
    let Headline { finding, advice } = Headline::of(report);
    let chosen = [("Median token", &paths.median), ("P99 token", &paths.p99)];
    let scenes = chosen.map(|(_, path)| Scene::of(trace, path));
    let mut body = format!(
        "<header><h1>{}</h1><p class=advice>{}</p></header>\n",
        Escaped(&finding),
        Escaped(&advice)
    );
    body += &sections::cards(report, paths);
    body += &sections::core_time(report);
    for (i, (title, path)) in chosen.into_iter().enumerate() {
        body += &sections::token(title, path, report.tokens, i);
    }
    body += &sections::tables(report);
    body += &format!(
        "<footer>Made from <code>{}</code> by <code>forebay trace report --html</code>.</footer>\n",
        Escaped(name)
    );
    Ok(format!(
        "<!doctype html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n\
         <meta name=viewport content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n{body}\
         <script type=\"application/json\" id=scenes>{scenes}</script>\n<script>\n{script}</script>\n\
         </body>\n</html>\n",
        title = Escaped(format!("{finding} – {name}")),
        style = include_str!("page/page.css"),
        scenes = scene::json(&scenes),
        script = include_str!("page/page.js"),
    ))
}
