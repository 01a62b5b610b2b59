use std::collections::HashMap;

fn main() {
    let mut map: HashMap<u64, Vec<u64>> = HashMap::new();
    let mut x = 1u64;
    for i in 0..300_000u64 {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        map.entry(x >> 48).or_default().push(i);
    }
    let large: Vec<u64> = (0..4_000_000).map(|i| i ^ x).collect();
    let sum = map.values().flatten().chain(&large).fold(0u64, |sum, v| sum.wrapping_add(*v));
    println!("{} {sum}", map.len());
}
