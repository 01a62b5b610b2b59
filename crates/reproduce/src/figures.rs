//! Numbers with names, from whatever JSON a command prints.

use std::collections::BTreeMap;

use serde_json::Value;

/// Numbers by their names. A name is the path to the number in the JSON, with dots.
pub type Figures = BTreeMap<String, f64>;

/// Adds the numbers of a JSON value.
///
/// Of a list of objects with texts in them, each object's numbers have these texts in their names: the row
/// `{"policy": "lru", "misses": 7}` of `rows` is `rows.lru.misses`. The numbers of objects without texts are added up,
/// such as those of the ranks of a parallel program. Truth is 1, untruth 0. Other lists are left out.
pub(crate) fn collect(value: &Value, into: &mut Figures) {
    add(String::new(), value, into);
}

fn add(name: String, value: &Value, into: &mut Figures) {
    match value {
        Value::Number(number) => *into.entry(name).or_insert(0.0) += number.as_f64().unwrap_or(f64::NAN),
        Value::Bool(truth) => *into.entry(name).or_insert(0.0) += f64::from(u8::from(*truth)),
        Value::Object(fields) => {
            for (key, value) in fields {
                add(under(&name, key), value, into);
            }
        }
        Value::Array(items) => {
            for item in items.iter().filter(|item| item.is_object()) {
                add(texts_of(item).into_iter().fold(name.clone(), |name, text| under(&name, text)), item, into);
            }
        }
        Value::String(_) | Value::Null => {}
    }
}

/// Returns the texts of an object in the order of their keys, whatever order the JSON has.
fn texts_of(object: &Value) -> Vec<&str> {
    let fields: BTreeMap<_, _> = object.as_object().into_iter().flatten().collect();
    fields.into_values().filter_map(Value::as_str).collect()
}

fn under(name: &str, key: &str) -> String {
    if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_are_named_by_their_paths() {
        let mut figures = Figures::new();
        collect(
            &json!({
                "elapsed_s": 1.5, "verified": true, "policy": "lru", "none": null, "hist": [1, 2],
                "rows": [{"policy": "lru", "misses": 7}, {"policy": "opt", "misses": 3}],
            }),
            &mut figures,
        );
        let wanted = [("elapsed_s", 1.5), ("rows.lru.misses", 7.0), ("rows.opt.misses", 3.0), ("verified", 1.0)];
        assert_eq!(figures.iter().map(|(name, value)| (name.as_str(), *value)).collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn ranks_are_added_up() {
        let mut figures = Figures::new();
        collect(&json!([{"barrier_ns": 3, "rank": 0}, {"barrier_ns": 4, "rank": 1}]), &mut figures);
        assert_eq!(figures["barrier_ns"], 7.0);
    }
}
