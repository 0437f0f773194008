//! Typed keys and values instead of bytes.
//!
//! Keys are [`SortKey`]s: integers, bools, strings, byte strings and tuples of these are encoded so
//! that their bytes sort like the values. Any other serde type can be wrapped in [`Serde`]; it is
//! grouped correctly, but sorted by its encoding (big-endian fixed integers; strings by length
//! first). Values can be any serde types, encoded with bincode.
//!
//! ```
//! use mrlib::{Context, Emit, Job, TaskError, typed::*};
//!
//! /// (word, year) -> count
//! struct Words;
//! impl TypedMapper for Words {
//!     type Key = (String, u16);
//!     type Value = u64;
//!     fn map(
//!         &mut self,
//!         _offset: &[u8],
//!         line: &[u8],
//!         out: &mut TypedOut<'_, Self::Key, u64>,
//!         _: &mut Context,
//!     ) -> Result<(), TaskError> {
//!         for word in String::from_utf8_lossy(line).split_whitespace() {
//!             out.emit(&(word.to_owned(), 2024), &1)?;
//!         }
//!         Ok(())
//!     }
//! }
//!
//! struct Add;
//! impl TypedCombiner for Add {
//!     type Key = (String, u16);
//!     type Value = u64;
//!     fn combine(&mut self, into: &mut u64, value: u64) {
//!         *into += value;
//!     }
//! }
//!
//! struct Print;
//! impl TypedReducer for Print {
//!     type Key = (String, u16);
//!     type Value = u64;
//!     fn reduce(
//!         &mut self,
//!         (word, year): Self::Key,
//!         values: &mut TypedValues<'_, u64>,
//!         out: &mut dyn Emit,
//!         _: &mut Context,
//!     ) -> Result<(), TaskError> {
//!         let mut sum = 0;
//!         while let Some(count) = values.next()? {
//!             sum += count;
//!         }
//!         out.emit(format!("{word} {year}").as_bytes(), sum.to_string().as_bytes())
//!     }
//! }
//!
//! let job = Job::map(|_| Ok(Typed::new(Words)))
//!     .combine(|_| Ok(Combining::new(Add)))
//!     .reduce(|_| Ok(Typed::new(Print)));
//! ```

use mrlib_api::{Context, Emit, Mapper, Reducer, StateBetweenKeys, TaskError, Values, error::quoted};
use serde::{Serialize, de::DeserializeOwned};
use std::marker::PhantomData;

/// Maximum memory for decoding a key or value. A damaged length field may claim much more.
const DECODE_BYTES_MAX: usize = 256 << 20;

/// A key whose encoding sorts like the key.
pub trait SortKey: Sized {
    /// Appends the encoding of the key to `out`.
    fn encode(&self, out: &mut Vec<u8>);

    /// Decodes a key from the front of `bytes` and advances `bytes` past it. Returns None if the
    /// bytes are malformed.
    fn decode(bytes: &mut &[u8]) -> Option<Self>;
}

macro_rules! integers {
    ($($unsigned:ty, $signed:ty;)*) => {$(
        impl SortKey for $unsigned {
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_be_bytes());
            }

            fn decode(bytes: &mut &[u8]) -> Option<Self> {
                let (number, rest) = bytes.split_first_chunk()?;
                *bytes = rest;
                Some(Self::from_be_bytes(*number))
            }
        }

        impl SortKey for $signed {
            // The sign bit is inverted, so that negative numbers come first.
            fn encode(&self, out: &mut Vec<u8>) {
                (self.cast_unsigned() ^ Self::MIN.cast_unsigned()).encode(out);
            }

            fn decode(bytes: &mut &[u8]) -> Option<Self> {
                Some((<$unsigned>::decode(bytes)? ^ Self::MIN.cast_unsigned()).cast_signed())
            }
        }
    )*};
}

integers! { u8, i8; u16, i16; u32, i32; u64, i64; u128, i128; }

impl SortKey for bool {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        u8::decode(bytes).map(|byte| byte != 0)
    }
}

/// In the encoding, each zero byte is followed by 255, and two zero bytes end the string. So a
/// string sorts after its prefixes, also within a tuple.
impl SortKey for Vec<u8> {
    fn encode(&self, out: &mut Vec<u8>) {
        for byte in self {
            out.push(*byte);
            if *byte == 0 {
                out.push(255);
            }
        }
        out.extend_from_slice(&[0, 0]);
    }

    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let mut key = Vec::new();
        loop {
            let (byte, rest) = bytes.split_first()?;
            *bytes = rest;
            if *byte == 0 {
                let (next, rest) = bytes.split_first()?;
                *bytes = rest;
                if *next == 0 {
                    return Some(key);
                }
            }
            key.push(*byte);
        }
    }
}

impl SortKey for String {
    fn encode(&self, out: &mut Vec<u8>) {
        for byte in self.bytes() {
            out.push(byte);
            if byte == 0 {
                out.push(255);
            }
        }
        out.extend_from_slice(&[0, 0]);
    }

    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        String::from_utf8(Vec::decode(bytes)?).ok()
    }
}

impl<A: SortKey, B: SortKey> SortKey for (A, B) {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
        self.1.encode(out);
    }

    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        Some((A::decode(bytes)?, B::decode(bytes)?))
    }
}

impl<A: SortKey, B: SortKey, C: SortKey> SortKey for (A, B, C) {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
        self.1.encode(out);
        self.2.encode(out);
    }

    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        Some((A::decode(bytes)?, B::decode(bytes)?, C::decode(bytes)?))
    }
}

/// Wraps any serde type as a key. Equal keys are grouped; keys are sorted by their encoding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Serde<T>(pub T);

impl<T: Serialize + DeserializeOwned> SortKey for Serde<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        let config = bincode::config::standard().with_big_endian().with_fixed_int_encoding();
        bincode::serde::encode_into_std_write(&self.0, out, config)
            .expect("bincode can encode all types to memory");
    }

    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let config = bincode::config::standard().with_big_endian().with_fixed_int_encoding();
        let decoded = bincode::serde::decode_from_slice(bytes, config.with_limit::<DECODE_BYTES_MAX>());
        let (key, length) = decoded.ok()?;
        *bytes = &bytes[length..];
        Some(Self(key))
    }
}

fn decode_key<K: SortKey>(mut bytes: &[u8]) -> Result<K, TaskError> {
    let whole = bytes;
    let key = K::decode(&mut bytes).filter(|_| bytes.is_empty());
    key.ok_or_else(|| TaskError::Program(format!("key {} cannot be decoded as its type", quoted(whole))))
}

fn decode_value<V: DeserializeOwned>(bytes: &[u8]) -> Result<V, TaskError> {
    let config = bincode::config::standard().with_limit::<DECODE_BYTES_MAX>();
    let decoded = bincode::serde::decode_from_slice(bytes, config);
    decoded
        .map(|(value, _)| value)
        .map_err(|error| TaskError::Program(format!("a value cannot be decoded as its type: {error}")))
}

/// A [`Mapper`] that emits typed pairs.
pub trait TypedMapper: Send {
    /// The type of the emitted keys.
    type Key: SortKey;
    /// The type of the emitted values.
    type Value: Serialize;

    /// Processes one record of the input format.
    fn map(
        &mut self,
        key: &[u8],
        value: &[u8],
        out: &mut TypedOut<'_, Self::Key, Self::Value>,
        context: &mut Context,
    ) -> Result<(), TaskError>;

    /// See [`Mapper::finish`].
    fn finish(
        &mut self,
        _out: &mut TypedOut<'_, Self::Key, Self::Value>,
        _context: &mut Context,
    ) -> Result<(), TaskError> {
        Ok(())
    }

    /// See [`Mapper::divisible`].
    fn divisible() -> bool
    where
        Self: Sized,
    {
        false
    }
}

/// A [`Reducer`] that gets typed pairs, and emits bytes for the output format.
pub trait TypedReducer: Send {
    /// The key type of the mapper.
    type Key: SortKey;
    /// The value type of the mapper.
    type Value: DeserializeOwned;

    /// Processes one key group.
    fn reduce(
        &mut self,
        key: Self::Key,
        values: &mut TypedValues<'_, Self::Value>,
        out: &mut dyn Emit,
        context: &mut Context,
    ) -> Result<(), TaskError>;

    /// See [`Reducer::finish`].
    fn finish(&mut self, _out: &mut dyn Emit, _context: &mut Context) -> Result<(), TaskError> {
        Ok(())
    }

    /// See [`Reducer::state_between_keys`].
    fn state_between_keys(&self) -> StateBetweenKeys {
        StateBetweenKeys::None
    }

    /// See [`Reducer::save`].
    fn save(&mut self, _out: &mut dyn Emit, _context: &mut Context) -> Result<Vec<u8>, TaskError> {
        Ok(Vec::new())
    }

    /// See [`Reducer::restore`].
    fn restore(&mut self, _state: &[u8]) -> Result<(), TaskError> {
        Ok(())
    }
}

/// A combiner that merges two values into one.
pub trait TypedCombiner: Send {
    /// The key type of the mapper.
    type Key: SortKey;
    /// The value type of the mapper.
    type Value: Serialize + DeserializeOwned;

    /// Merges `value` into `into`.
    fn combine(&mut self, into: &mut Self::Value, value: Self::Value);
}

/// Receives typed pairs.
pub struct TypedOut<'a, K, V> {
    out: &'a mut dyn Emit,
    buffers: &'a mut (Vec<u8>, Vec<u8>),
    kinds: PhantomData<(K, V)>,
}

impl<K: SortKey, V: Serialize> TypedOut<'_, K, V> {
    /// Emits a pair.
    pub fn emit(&mut self, key: &K, value: &V) -> Result<(), TaskError> {
        let (key_bytes, value_bytes) = &mut *self.buffers;
        key_bytes.clear();
        key.encode(key_bytes);
        encode_value(value, value_bytes)?;
        self.out.emit(key_bytes, value_bytes)
    }
}

fn encode_value(value: &impl Serialize, bytes: &mut Vec<u8>) -> Result<(), TaskError> {
    bytes.clear();
    let encoded = bincode::serde::encode_into_std_write(value, bytes, bincode::config::standard());
    encoded.map(drop).map_err(|error| TaskError::Program(format!("a value cannot be encoded: {error}")))
}

/// Iterates over typed values.
pub struct TypedValues<'a, V> {
    values: &'a mut dyn Values,
    kind: PhantomData<V>,
}

impl<V: DeserializeOwned> TypedValues<'_, V> {
    /// Returns the next value; None after the last one.
    #[allow(clippy::should_implement_trait, reason = "an Iterator could not return an error")]
    pub fn next(&mut self) -> Result<Option<V>, TaskError> {
        self.values.next()?.map(decode_value).transpose()
    }
}

/// Adapts a typed mapper or reducer to bytes.
pub struct Typed<T> {
    inner: T,
    buffers: (Vec<u8>, Vec<u8>),
}

impl<T> Typed<T> {
    /// Wraps a typed mapper or reducer.
    pub fn new(inner: T) -> Self {
        Self { inner, buffers: <_>::default() }
    }
}

impl<T: TypedMapper> Mapper for Typed<T> {
    fn map(
        &mut self,
        key: &[u8],
        value: &[u8],
        out: &mut dyn Emit,
        context: &mut Context,
    ) -> Result<(), TaskError> {
        let mut out = TypedOut { out, buffers: &mut self.buffers, kinds: PhantomData };
        self.inner.map(key, value, &mut out, context)
    }

    fn finish(&mut self, out: &mut dyn Emit, context: &mut Context) -> Result<(), TaskError> {
        let mut out = TypedOut { out, buffers: &mut self.buffers, kinds: PhantomData };
        self.inner.finish(&mut out, context)
    }

    fn divisible() -> bool {
        T::divisible()
    }
}

impl<T: TypedReducer> Reducer for Typed<T> {
    fn reduce(
        &mut self,
        key: &[u8],
        values: &mut dyn Values,
        out: &mut dyn Emit,
        context: &mut Context,
    ) -> Result<(), TaskError> {
        let mut values = TypedValues { values, kind: PhantomData };
        self.inner.reduce(decode_key(key)?, &mut values, out, context)
    }

    fn finish(&mut self, out: &mut dyn Emit, context: &mut Context) -> Result<(), TaskError> {
        self.inner.finish(out, context)
    }

    fn state_between_keys(&self) -> StateBetweenKeys {
        self.inner.state_between_keys()
    }

    fn save(&mut self, out: &mut dyn Emit, context: &mut Context) -> Result<Vec<u8>, TaskError> {
        self.inner.save(out, context)
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), TaskError> {
        self.inner.restore(state)
    }
}

/// Adapts a typed combiner to bytes.
pub struct Combining<T> {
    inner: T,
    buffer: Vec<u8>,
}

impl<T> Combining<T> {
    /// Wraps a typed combiner.
    pub fn new(inner: T) -> Self {
        Self { inner, buffer: Vec::new() }
    }
}

impl<T: TypedCombiner> Reducer for Combining<T> {
    fn reduce(
        &mut self,
        key: &[u8],
        values: &mut dyn Values,
        out: &mut dyn Emit,
        _context: &mut Context,
    ) -> Result<(), TaskError> {
        let mut values = TypedValues { values, kind: PhantomData::<T::Value> };
        let Some(mut sum) = values.next()? else { return Ok(()) };
        while let Some(value) = values.next()? {
            self.inner.combine(&mut sum, value);
        }
        encode_value(&sum, &mut self.buffer)?;
        out.emit(key, &self.buffer)
    }

    /// Merges in place if the encoded result is as long as `into`.
    fn fold(&mut self, into: &mut [u8], value: &[u8]) -> bool {
        let (Ok(mut sum), Ok(value)) = (decode_value(into), decode_value(value)) else { return false };
        self.inner.combine(&mut sum, value);
        let fits = encode_value(&sum, &mut self.buffer).is_ok() && self.buffer.len() == into.len();
        if fits {
            into.copy_from_slice(&self.buffer);
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Job;
    use proptest::prelude::*;

    fn bytes<K: SortKey>(key: &K) -> Vec<u8> {
        let mut bytes = Vec::new();
        key.encode(&mut bytes);
        bytes
    }

    type Key = (String, i64, (Vec<u8>, u32, bool));

    fn key() -> impl Strategy<Value = Key> {
        let small = prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(255)], 0..4);
        ("[a\0b]{0,3}", -3i64..3, (small, 0u32..3, any::<bool>()))
    }

    proptest! {
        #[test]
        fn encoded_keys_sort_like_keys_and_round_trip(a in key(), b in key(), number in any::<i128>()) {
            prop_assert_eq!(bytes(&a).cmp(&bytes(&b)), a.cmp(&b));
            prop_assert_eq!(&decode_key::<Key>(&bytes(&a)).unwrap(), &a);
            prop_assert_eq!(bytes(&number).cmp(&bytes(&0i128)), number.cmp(&0));
            let other = Serde((a.0.clone(), Some(a.1)));
            prop_assert_eq!(decode_key::<Serde<(String, Option<i64>)>>(&bytes(&other)).unwrap(), other);
        }

        #[test]
        fn malformed_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..20)) {
            let _ = (decode_key::<Key>(&bytes), decode_value::<Vec<String>>(&bytes));
        }
    }

    struct Add;

    impl TypedCombiner for Add {
        type Key = u8;
        type Value = u64;

        fn combine(&mut self, into: &mut u64, value: u64) {
            *into += value;
        }
    }

    struct Nothing;
    struct Divisible;

    impl TypedMapper for Nothing {
        type Key = u8;
        type Value = u8;

        fn map(
            &mut self,
            _: &[u8],
            _: &[u8],
            _: &mut TypedOut<'_, u8, u8>,
            _: &mut Context,
        ) -> Result<(), TaskError> {
            Ok(())
        }
    }

    impl TypedMapper for Divisible {
        type Key = u8;
        type Value = u8;

        fn map(
            &mut self,
            key: &[u8],
            value: &[u8],
            out: &mut TypedOut<'_, u8, u8>,
            context: &mut Context,
        ) -> Result<(), TaskError> {
            Nothing.map(key, value, out, context)
        }

        fn divisible() -> bool {
            true
        }
    }

    #[test]
    fn typed_mapper_is_divisible_only_if_it_declares_so() {
        assert!(!Job::map(|_| Ok(Typed::new(Nothing))).divisible);
        assert!(Job::map(|_| Ok(Typed::new(Divisible))).divisible);
    }

    #[test]
    fn sum_with_a_longer_encoding_is_not_folded() {
        let mut add = Combining::new(Add);
        let mut into = [200];
        assert!(add.fold(&mut into, &[50]));
        assert_eq!(into, [250]);
        assert!(!add.fold(&mut into, &[50]), "300 takes three bytes");
        assert_eq!(into, [250], "the value has changed");
    }
}
