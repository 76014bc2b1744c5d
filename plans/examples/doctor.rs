//! Prints what the doctor finds on this machine: `cargo run --release -p forebay-plans --example doctor`,
//! with `--json` for the facts behind it.

use forebay_plans::doctor::{Doctor, ExamineOptions};

fn main() -> Result<(), serde_json::Error> {
    let options = ExamineOptions {
        bandwidth_rounds: 9,
        ..ExamineOptions::default()
    };
    let doctor = Doctor::examine(&options);
    if std::env::args().any(|argument| argument == "--json") {
        println!("{}", serde_json::to_string_pretty(&doctor)?);
    } else {
        print!("{doctor}");
    }
    Ok(())
}
