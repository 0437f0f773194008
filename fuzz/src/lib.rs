//! Code that the libFuzzer entries share.

pub use fermata_fuzzing::{Target, execute, memory::CountingAllocator, target};
pub use libfuzzer_sys::fuzz_target;

/// Defines the libFuzzer entry of a target, with the counting allocator.
#[macro_export]
macro_rules! entry {
    ($name:literal) => {
        #[global_allocator]
        static ALLOCATOR: $crate::CountingAllocator = $crate::CountingAllocator;

        $crate::fuzz_target!(|input: &[u8]| {
            static TARGET: std::sync::LazyLock<$crate::Target> =
                std::sync::LazyLock::new(|| $crate::target($name).expect("a target of this name"));
            $crate::execute(&TARGET, input);
        });
    };
}
