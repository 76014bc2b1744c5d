//! The memory budget as a list of named claims.
//!
//! One number covers everything that the process holds. Each part claims its bytes with a reason;
//! the sum is shown before a run, kept during it, and printed in the statistics.

use std::borrow::Cow;
use std::fmt;

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::size::format_size;

/// How many items an error names: enough to see what dominates.
const NAMED_IN_ERROR: usize = 4;

/// One claim on the budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetItem {
    /// What it is, as in the statistics: `kv_cache`, `resident_weights`.
    pub name: Cow<'static, str>,
    /// Bytes of the budget.
    pub bytes: u64,
    /// Where the figure comes from, such as `24 layers x 2 x 4096 tokens x 512 B`.
    pub why: String,
}

/// How much may be used, and what uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Budget {
    total_bytes: u64,
    items: Vec<BudgetItem>,
}

impl Budget {
    /// A budget of `total_bytes` of which nothing is claimed yet.
    pub fn new(total_bytes: u64) -> Self {
        Self {
            total_bytes,
            items: Vec::new(),
        }
    }

    /// Takes `bytes` for `name`. A second claim of the same name adds to the first.
    ///
    /// It never fails: all needs are gathered first, so that [`Budget::check`] can name the minimum budget instead of
    /// the first claim that did not fit.
    pub fn claim(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        bytes: u64,
        why: impl Into<String>,
    ) {
        let (name, why) = (name.into(), why.into());
        match self.items.iter_mut().find(|item| item.name == name) {
            Some(item) => {
                item.bytes = item.bytes.saturating_add(bytes);
                item.why = format!("{}; {why}", item.why);
            }
            None => self.items.push(BudgetItem { name, bytes, why }),
        }
    }

    /// The same claims under another total, except that `name` takes `less` bytes less.
    #[must_use]
    pub fn changed(&self, total_bytes: u64, name: &str, less: u64) -> Self {
        let mut items = self.items.clone();
        for item in items.iter_mut().filter(|item| item.name == name) {
            item.bytes = item.bytes.saturating_sub(less);
        }
        Self { total_bytes, items }
    }

    /// The whole budget in bytes.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// The claims, in the order they were made.
    pub fn items(&self) -> &[BudgetItem] {
        &self.items
    }

    /// Sum of all claims; saturates, and a saturated sum fits no budget.
    pub fn claimed(&self) -> u64 {
        self.items
            .iter()
            .fold(0, |sum, item| sum.saturating_add(item.bytes))
    }

    /// Bytes not claimed; 0 when the claims exceed the budget.
    pub fn remaining(&self) -> u64 {
        self.total_bytes.saturating_sub(self.claimed())
    }

    /// Whether all claims so far fit.
    ///
    /// # Errors
    /// They do not; the error names the sum as the minimum budget.
    pub fn check(&self) -> Result<(), ImpossibleBudget> {
        if self.claimed() <= self.total_bytes {
            return Ok(());
        }
        Err(ImpossibleBudget {
            asked: self.total_bytes,
            least: self.claimed(),
            items: self.items.clone(),
        })
    }
}

/// A table: one claim per line, then the sum, the budget and the rest.
impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let claimed = self.claimed();
        let foot = match self.total_bytes.checked_sub(claimed) {
            Some(free) => ("free", free),
            None => ("over", claimed - self.total_bytes),
        };
        let totals = [("sum", claimed), ("budget", self.total_bytes), foot];
        let names = self.items.iter().map(|item| item.name.chars().count());
        let name_width = names.max().unwrap_or(0).max("budget".len());
        let sizes = self.items.iter().map(|item| item.bytes);
        let size_width = sizes
            .chain(totals.map(|(_, bytes)| bytes))
            .map(|bytes| format_size(bytes).len())
            .max()
            .unwrap_or(0);

        for item in &self.items {
            let size = format_size(item.bytes);
            writeln!(
                f,
                "{:name_width$}  {size:>size_width$}  {}",
                item.name, item.why
            )?;
        }
        writeln!(f, "{:-<1$}", "", name_width + 2 + size_width)?;
        for (name, bytes) in totals {
            writeln!(f, "{name:name_width$}  {:>size_width$}", format_size(bytes))?;
        }
        Ok(())
    }
}

/// `{name: bytes}` in the order of the claims: the `items` of the statistics.
impl Serialize for Budget {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.items.len()))?;
        for item in &self.items {
            map.serialize_entry(&item.name, &item.bytes)?;
        }
        map.end()
    }
}

/// The claims exceed the budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImpossibleBudget {
    /// The requested budget, in bytes.
    pub asked: u64,
    /// The minimum budget, in bytes.
    pub least: u64,
    /// All claims.
    pub items: Vec<BudgetItem>,
}

impl ImpossibleBudget {
    /// The minimum budget in MiB, rounded up.
    pub fn least_mib(&self) -> u64 {
        self.least.div_ceil(1 << 20)
    }
}

impl fmt::Display for ImpossibleBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut largest: Vec<&BudgetItem> = self.items.iter().collect();
        largest.sort_by_key(|item| std::cmp::Reverse(item.bytes));
        let shown = largest.len().min(NAMED_IN_ERROR);
        let (named, rest) = largest.split_at(shown);
        let mut parts: Vec<String> = named
            .iter()
            .map(|item| format!("{} {}", item.name, format_size(item.bytes)))
            .collect();
        if !rest.is_empty() {
            let others = rest
                .iter()
                .fold(0u64, |sum, item| sum.saturating_add(item.bytes));
            parts.push(format!("{} others {}", rest.len(), format_size(others)));
        }
        write!(
            f,
            "a memory budget of {} is too small; the minimum is {least} MiB ({})",
            format_size(self.asked),
            parts.join(", "),
            least = self.least_mib(),
        )
    }
}

impl std::error::Error for ImpossibleBudget {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::size::parse_size;
    use proptest::prelude::*;

    fn example(total: u64) -> Budget {
        let mut budget = Budget::new(total);
        budget.claim(
            "resident_weights",
            400 << 20,
            "embeddings and attention of 24 layers",
        );
        budget.claim("kv_cache", 24 << 20, "24 layers x 2 x 1024 tokens x 512 B");
        budget.claim("scratch", 3000, "one activation row");
        budget.claim("io_buffers", 8 << 20, "16 x 512 KiB");
        budget.claim("process", (5 << 20) + 1, "measured at start-up");
        budget
    }

    #[test]
    fn what_is_left_is_the_total_less_the_claims() {
        let mut budget = example(1 << 30);
        let left = (1 << 30) - (437 << 20) - 3001;
        assert_eq!(budget.remaining(), left);
        assert!(budget.check().is_ok());
        budget.claim("neuron_cache", left, "the rest");
        assert_eq!(budget.remaining(), 0);
        assert!(budget.check().is_ok(), "a full budget fits exactly");
        budget.claim("scratch", 1, "one byte more");
        assert!(budget.check().is_err());
        assert_eq!(budget.remaining(), 0);
    }

    #[test]
    fn claims_of_one_name_add_up_and_keep_their_reasons() {
        let mut budget = Budget::new(100);
        budget.claim("a", 30, "first");
        budget.claim("b", 5, "other");
        budget.claim(String::from("a"), 12, "second");
        assert_eq!(budget.items().len(), 2);
        assert_eq!(budget.items()[0].bytes, 42);
        assert_eq!(budget.items()[0].why, "first; second");
        assert_eq!(serde_json::to_string(&budget).unwrap(), r#"{"a":42,"b":5}"#);
    }

    #[test]
    fn the_table_is_aligned_and_shows_sum_budget_and_rest() {
        let table = example(1 << 30).to_string();
        let expected = "\
resident_weights   400 MiB  embeddings and attention of 24 layers
kv_cache          24.0 MiB  24 layers x 2 x 1024 tokens x 512 B
scratch           2.93 KiB  one activation row
io_buffers        8.00 MiB  16 x 512 KiB
process           5.00 MiB  measured at start-up
--------------------------
sum                437 MiB
budget            1.00 GiB
free               587 MiB
";
        assert_eq!(table, expected);
        assert!(
            example(1 << 20)
                .to_string()
                .ends_with("over               436 MiB\n")
        );
    }

    #[test]
    fn an_impossible_budget_names_the_least_and_the_largest() {
        let error = example(300 << 20).check().unwrap_err();
        assert_eq!(
            error.to_string(),
            "a memory budget of 300 MiB is too small; the minimum is 438 MiB \
             (resident_weights 400 MiB, kv_cache 24.0 MiB, io_buffers 8.00 MiB, \
             process 5.00 MiB, 1 others 2.93 KiB)"
        );
    }

    proptest! {
        #[test]
        fn the_suggested_budget_works(total in 0u64..1 << 30, sizes in proptest::collection::vec(0u64..1 << 40, 1..8)) {
            let claims = |total| {
                let mut budget = Budget::new(total);
                for (i, &bytes) in sizes.iter().enumerate() {
                    budget.claim(format!("item{i}"), bytes, "test");
                }
                budget
            };
            let budget = claims(total);
            prop_assert_eq!(budget.remaining(), total.saturating_sub(sizes.iter().sum()));
            if let Err(error) = budget.check() {
                prop_assert!(error.least > total);
                let suggested = parse_size(&format!("{}MiB", error.least_mib())).unwrap();
                prop_assert!(claims(suggested).check().is_ok());
                prop_assert!(claims(error.least - 1).check().is_err());
            }
        }

        #[test]
        fn absurd_claims_do_not_wrap(a in any::<u64>(), b in any::<u64>()) {
            let mut budget = Budget::new(u64::MAX - 1);
            budget.claim("a", a, "");
            budget.claim("b", b, "");
            prop_assert_eq!(budget.check().is_ok(), a.checked_add(b).is_some_and(|sum| sum < u64::MAX));
        }
    }
}
