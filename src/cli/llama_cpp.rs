//! Options of llama.cpp's programs that Forebay does not have, and what to do instead.

/// Names of options that mean the same, and the advice.
const OPTIONS: [(&[&str], &str); 17] = [
    (
        &["-ngl", "--gpu-layers", "--n-gpu-layers"],
        "what a GPU computes is planned; --device NAME chooses the GPU",
    ),
    (
        &[
            "-dev",
            "-mg",
            "--main-gpu",
            "-sm",
            "--split-mode",
            "-ts",
            "--tensor-split",
        ],
        "--device NAME chooses the one GPU that is used",
    ),
    (
        &["-cnv", "--conversation", "-i", "--interactive"],
        "use `forebay chat`",
    ),
    (
        &["-st", "--single-turn"],
        "use `forebay run --chat -p TEXT`",
    ),
    (
        &["-no-cnv", "--no-conversation"],
        "`forebay run` continues a text; omit it",
    ),
    (
        &["-sys", "--system-prompt"],
        "--system TEXT, of `forebay chat` and `forebay run --chat`",
    ),
    (
        &["-ctk", "--cache-type-k", "-ctv", "--cache-type-v"],
        "--kv f16 or --kv q8 is the format of keys and values",
    ),
    (
        &[
            "-hf",
            "-hfr",
            "--hf-repo",
            "-hff",
            "--hf-file",
            "-mu",
            "--model-url",
        ],
        "download the model first, and give its file or folder",
    ),
    (&["-fa", "--flash-attn"], "it is not needed; omit it"),
    (
        &["-tb", "--threads-batch"],
        "--threads N is for prompts, too",
    ),
    (
        &["-b", "--batch-size", "-ub", "--ubatch-size"],
        "the size of batches is planned; omit it",
    ),
    (
        &["-e", "--escape"],
        "-p takes its text as it is; write the text to a file, and give -f FILE",
    ),
    (
        &["--mlock", "--no-mmap"],
        "--memory SIZE says how much may be in memory",
    ),
    (
        &[
            "-ot",
            "--override-tensor",
            "-cmoe",
            "--cpu-moe",
            "-ncmoe",
            "--n-cpu-moe",
        ],
        "--memory SIZE says how much may be in memory; which weights these are is planned",
    ),
    (
        &["-md", "--model-draft"],
        "--draft MODEL is the smaller model",
    ),
    (&["--jinja"], "chat templates are always Jinja; omit it"),
    (
        &["--no-display-prompt"],
        "-q prints the generated text only",
    ),
];

/// What to do instead of giving `option`, if it is one of llama.cpp's.
pub fn instead(option: &str) -> Option<&'static str> {
    let found = OPTIONS.iter().find(|(names, _)| names.contains(&option));
    found.map(|(_, advice)| *advice)
}
