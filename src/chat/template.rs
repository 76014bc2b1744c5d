//! Running a chat template: Jinja as transformers runs it, in bounded time and with bounded output.

use std::io::Write;
use std::time::SystemTime;

use forebay_models::tokenizer::catching;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, ErrorKind};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::filters;
use crate::error::Error;

/// Instructions that a template may take; those in use take some hundred for each message.
const FUEL: u64 = 20_000_000;
/// What messages of the engine call the template.
const NAME: &str = "chat";

/// A chat template.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    text: String,
    /// The file, or the model and the key in it.
    origin: String,
}

impl Template {
    /// The template `text`; `origin` says where it is from.
    pub fn new(text: &str, origin: String) -> Self {
        // As Jinja does, which knows one kind of line ends.
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        let text = with_generation_blocks(&text);
        Self { text, origin }
    }

    /// Whether it is a template at all.
    ///
    /// # Errors
    /// It is not, for the reason that the error gives.
    pub fn check(&self) -> Result<(), Error> {
        self.guarded(|| self.environment(SystemTime::UNIX_EPOCH).map(drop))
    }

    /// The program.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Where it is from.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// What the template writes with these variables, at most `most` bytes. `now` is the time that it is told.
    ///
    /// # Errors
    /// It fails, refuses the conversation, does not end, or writes too much.
    pub fn render(&self, variables: Value, most: usize, now: SystemTime) -> Result<String, Error> {
        self.guarded(|| self.run(variables, most, now))
    }

    /// Runs code of the template engine, which may panic over templates that nobody has tried it with.
    fn guarded<T>(&self, run: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let problem = || self.error("the template engine fails on it".into());
        catching(run).unwrap_or_else(|| Err(problem()))
    }

    fn run(&self, variables: Value, most: usize, now: SystemTime) -> Result<String, Error> {
        let environment = self.environment(now)?;
        let template = environment
            .get_template(NAME)
            .map_err(|e| self.failure(&e))?;
        let mut output = Output {
            text: Vec::new(),
            most,
            is_full: false,
        };
        let done = template.render_captured_to(variables, &mut output);
        if output.is_full {
            let problem = format!("it writes more than {most} bytes for this conversation");
            return Err(self.error(problem));
        }
        done.map_err(|e| self.failure(&e))?;
        String::from_utf8(output.text).map_err(|_| self.error("it writes no UTF-8".into()))
    }

    fn environment(&self, now: SystemTime) -> Result<Environment<'_>, Error> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        environment.set_syntax(syntax.map_err(|e| self.failure(&e))?);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(unknown_method_callback);
        filters::add(&mut environment, now);
        environment
            .add_template(NAME, &self.text)
            .map_err(|e| self.failure(&e))?;
        Ok(environment)
    }

    fn error(&self, problem: String) -> Error {
        Error::ChatTemplate {
            template: self.origin.clone(),
            problem,
        }
    }

    fn failure(&self, error: &minijinja::Error) -> Error {
        if let Some(message) = filters::raised(error) {
            return Error::ChatRefused {
                template: self.origin.clone(),
                message,
            };
        }
        let line = error.line().map(|n| format!("line {n}: "));
        let line = line.unwrap_or_default();
        let what = match (error.kind(), error.detail()) {
            (ErrorKind::OutOfFuel, _) => "it does not end".to_owned(),
            (kind, Some(detail)) => format!("{kind}: {detail}"),
            (kind, None) => kind.to_string(),
        };
        self.error(format!("{line}{what}"))
    }
}

/// Text of bounded length.
struct Output {
    text: Vec<u8>,
    most: usize,
    is_full: bool,
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.text.len() + bytes.len() > self.most {
            self.is_full = true;
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// `{% generation %}`, with which training marks answers, as a block that writes its content.
fn with_generation_blocks(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        let inner = tag.trim_start_matches(['-', '+']);
        let word = inner.trim_start();
        let lead = tag.len() - word.len();
        let found = [("endgeneration", "endif"), ("generation", "if true")];
        let found = found.into_iter().find(|(name, _)| {
            let after = word.strip_prefix(name);
            after.is_some_and(|after| {
                after
                    .trim_start()
                    .trim_start_matches(['-', '+'])
                    .starts_with("%}")
            })
        });
        rest = match found {
            Some((name, instead)) => {
                out.push_str(&tag[..lead]);
                out.push_str(instead);
                &word[name.len()..]
            }
            None => tag,
        };
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use minijinja::context;

    use super::*;

    fn render(text: &str) -> Result<String, Error> {
        let template = Template::new(text, "m.gguf: key".into());
        template.check()?;
        let variables = context! { n => 3, text => "<a> é \"b\"" };
        template.render(variables, 1000, SystemTime::UNIX_EPOCH)
    }

    #[test]
    fn texts_and_maps_are_sequences_as_in_jinja() {
        let source = "{% for x in ['a', {}, [], 1, none] %}{{ x is sequence }}{{ x is iterable }} {% endfor %}";
        let expected = "TrueTrue TrueTrue TrueTrue FalseFalse FalseFalse ";
        assert_eq!(render(source).expect("rendered"), expected);
    }

    #[test]
    fn blocks_are_trimmed_and_generation_blocks_are_transparent() {
        let text = "  {% if n %}\nyes\n{% endif %}\n{%- generation -%} a {%- endgeneration %}\nb {% generation %}c{% endgeneration %}";
        assert_eq!(render(text).expect("renders"), "yes\nab c");
        let untouched = "{{ 'generation' }}{% set generation = 1 %}{{ generation }}";
        assert_eq!(render(untouched).expect("renders"), "generation1");
    }

    #[test]
    fn python_methods_and_loop_controls_work() {
        let text = "{% for x in range(9) %}{% if x == n %}{% break %}{% endif %}{{ x }}{% endfor %}\
                    {{ text.split(' ')[1].strip() }}{{ {'a': 1}.get('b', 2) }}{{ 'x' ~ none ~ true }}\
                    {% set ns = namespace(k=1) %}{% set ns.k = 2 %}{{ ns.k }}{{ dict(a=1)['a'] }}";
        assert_eq!(render(text).expect("renders"), "012é2xNoneTrue21");
    }

    #[test]
    fn what_is_wrong_is_said_with_where_it_is() {
        for (text, expected) in [
            ("a\n{% if %}", "m.gguf: key: line 2: "),
            ("{{ text | nosuchfilter }}", "nosuchfilter"),
            (
                "{{ raise_exception('roles must alternate') }}",
                "roles must alternate",
            ),
            (
                "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
                "does not end",
            ),
            (
                "{% for a in range(999) %}{{ a }}{% endfor %}",
                "more than 1000 bytes",
            ),
            ("{{ text.nosuchmethod() }}", "nosuchmethod"),
        ] {
            let message = render(text).expect_err(text).to_string();
            assert!(message.contains(expected), "{text}: {message}");
            assert!(message.contains("m.gguf: key"), "{text}: {message}");
        }
    }
}
