//! A small generator, seeded, so that a failure can be repeated; and values that nobody should send.

use serde_json::{Value, json};

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        let mut random = Self(seed | 1);
        for _ in 0..8 {
            random.below(2);
        }
        random
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).expect("31 bits") % limit.max(1)
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    fn hostile(&mut self) -> Value {
        let values = [
            json!(null),
            json!(true),
            json!(0),
            json!(-1),
            json!(1.5),
            json!(1e300),
            json!(u64::MAX),
            json!(i64::MIN),
            json!(""),
            json!("x"),
            json!("-"),
            json!("1e1.5"),
            json!("1e999999999"),
            json!("\u{0}\u{202e}é"),
            json!("9".repeat(3000)),
            json!([]),
            json!({}),
            json!([null]),
            json!({"": null}),
            json!([[[]]]),
            json!("2026-13-45T99:99:99Z"),
            json!({"spec": {}}),
        ];
        self.pick(&values).clone()
    }

    /// Replaces, removes, adds or doubles something somewhere.
    pub fn mutate(&mut self, value: &mut Value) {
        let deeper = self.below(5) > 0;
        match value {
            Value::Object(members) if deeper && !members.is_empty() => {
                let index = self.below(members.len());
                let name = members.keys().nth(index).cloned().unwrap_or_default();
                match self.below(12) {
                    0 => drop(members.remove(&name)),
                    1 => drop(members.insert("unheardOf".to_owned(), self.hostile())),
                    _ => {
                        if let Some(member) = members.get_mut(&name) {
                            self.mutate(member);
                        }
                    }
                }
            }
            Value::Array(items) if deeper && !items.is_empty() => {
                let index = self.below(items.len());
                match self.below(6) {
                    0 => drop(items.remove(index)),
                    1 => items.push(items[index].clone()),
                    _ => self.mutate(&mut items[index]),
                }
            }
            _ => *value = self.hostile(),
        }
    }
}
