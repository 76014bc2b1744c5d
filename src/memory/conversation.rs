//! What a conversation takes beside its keys and values.

/// Longest text of a conversation, in bytes: for each position of the context, and in addition. Usual tokens have four.
const BYTES_PER_POSITION: usize = 16;
const MORE_BYTES: usize = 64 << 10;

/// How often a conversation's text is in memory at once: the messages, the variables of the template, what it writes,
/// twice, what the session has read, and the text of tokens to come.
const COPIES: u64 = 6;
/// Memory for a template's program and for values, and what the first conversation touches of the program: a chat with
/// SmolLM2 takes 3.2 MiB more than the same text as a prompt.
const ENGINE_BYTES: u64 = 3 << 20;

/// Longest text of a conversation in `context` positions, bytes.
pub(crate) fn longest_conversation(context: usize) -> usize {
    context
        .saturating_mul(BYTES_PER_POSITION)
        .saturating_add(MORE_BYTES)
}

/// Memory that a conversation in `context` positions takes beside its keys and values, bytes.
pub(super) fn chat_bytes(context: usize) -> u64 {
    COPIES * longest_conversation(context) as u64 + ENGINE_BYTES
}
