//! Typed indices and the tables they index. The `Display` of an entity is its name in the text form.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// An index into one kind of table.
pub trait Entity: Copy + Eq {
    /// From a position in the table.
    fn new(index: usize) -> Self;
    /// Position in the table.
    fn index(self) -> usize;
}

macro_rules! entity {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u32);

        impl Entity for $name {
            fn new(index: usize) -> Self {
                $name(u32::try_from(index).expect("fewer than 2^32 entities"))
            }
            fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

entity!(/** A value. */ Value, "v");
entity!(/** An instruction. */ Inst, "i");
entity!(/** A list of instructions. */ Region, "b");
entity!(/** A parameter of the kernel. */ ParamId, "p");
entity!(/** A mutable uniform variable. */ VarId, "x");
entity!(/** Role-private scratch. */ ScratchId, "s");
entity!(/** A role. */ RoleId, "r");
entity!(/** A line of the user's source. */ Site, "@");

/// A vector indexed by one kind of entity.
#[derive(Clone, PartialEq)]
pub struct Table<K, V> {
    items: Vec<V>,
    key: PhantomData<K>,
}

impl<K: Entity, V> Table<K, V> {
    /// An empty table.
    pub fn new() -> Self {
        Table { items: Vec::new(), key: PhantomData }
    }
    /// An empty table with room for some items.
    pub fn with_capacity(items: usize) -> Self {
        Table { items: Vec::with_capacity(items), key: PhantomData }
    }
    /// Appends an item and returns its key.
    pub fn push(&mut self, item: V) -> K {
        self.items.push(item);
        K::new(self.items.len() - 1)
    }
    /// Number of items.
    pub fn len(&self) -> usize {
        self.items.len()
    }
    /// True if the table is empty.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
    /// The item, or `None` if the key is not in this table.
    pub fn get(&self, key: K) -> Option<&V> {
        self.items.get(key.index())
    }
    /// Keys in order.
    pub fn keys(&self) -> impl Iterator<Item = K> + use<K, V> {
        (0..self.items.len()).map(K::new)
    }
    /// Keys and items in order.
    pub fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.items.iter().enumerate().map(|(i, v)| (K::new(i), v))
    }
    /// Items in order.
    pub fn values(&self) -> std::slice::Iter<'_, V> {
        self.items.iter()
    }
}

impl<K: Entity, V> Default for Table<K, V> {
    fn default() -> Self {
        Table::new()
    }
}

impl<K: Entity, V> Index<K> for Table<K, V> {
    type Output = V;
    fn index(&self, key: K) -> &V {
        &self.items[key.index()]
    }
}

impl<K: Entity, V> IndexMut<K> for Table<K, V> {
    fn index_mut(&mut self, key: K) -> &mut V {
        &mut self.items[key.index()]
    }
}

impl<K: Entity, V: fmt::Debug> fmt::Debug for Table<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.items).finish()
    }
}
