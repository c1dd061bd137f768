//! What the storm over collectives exercised.

macro_rules! coverage {
    ($($(#[doc = $doc:literal])+ $field:ident: $name:literal,)*) => {
        /// What was exercised, as the ranks counted it.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CollectiveCoverage {
            $($(#[doc = $doc])+ pub $field: u64,)*
        }

        impl CollectiveCoverage {
            /// Names and numbers.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$(($name, self.$field)),*].into_iter()
            }

            /// Adds another's.
            pub fn merge(&mut self, other: &CollectiveCoverage) {
                $(self.$field += other.$field;)*
            }
        }
    };
}

coverage! {
    /// Operations that ended well at a rank, over RC.
    reliable: "operations over RC",
    /// The same over XP, with everything there.
    whole: "operations whole",
    /// The same with something missing.
    partial: "operations in part",
    /// Operations over XP in which something was fetched again.
    repaired: "operations repaired",
    /// Operations whose deadline was learnt.
    learnt: "deadlines learnt",
    /// Allreduces that were encoded.
    encoded: "operations encoded",
    /// Those of them that were encoded because earlier ones had lost data.
    agreed: "operations encoded after losses",
    /// Bytes that were expected over XP.
    expected_bytes: "bytes expected",
    /// Bytes of them that were missing.
    missing_bytes: "bytes missing",
    /// Bytes of them that were fetched again.
    repaired_bytes: "bytes repaired",
    /// Operations that failed at a rank.
    failed: "operations failed",
    /// Ranks that died.
    killed: "ranks killed",
    /// Allreduces whose result was computed again from the reports of all ranks.
    replayed: "allreduces replayed",
    /// Those of them by two levels.
    two_level: "allreduces by two levels",
    /// Directions between ranks that went through a shared ring.
    shared: "directions shared",
    /// Those of them between two ranks that use no XP.
    near: "directions without XP",
}
