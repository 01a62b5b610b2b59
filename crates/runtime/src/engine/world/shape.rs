//! Draws the random parameters of a run.

use hanare_paging::{Class, Config, Geometry, limits, policy};
use hanare_store::faulty::Faults;

use super::{Random, Shape, WORKS};
use crate::span::OS_PAGE;
use crate::view::fake;

/// Draws the page sizes: units of a block, and units of a middle page.
fn draw_sizes(random: &mut Random, doubled: bool) -> (usize, usize) {
    match doubled || random.chance(600) {
        true => (1, 1),
        false => random.pick(&[(4, 1), (4, 2), (16, 4)]),
    }
}

pub(super) fn draw_shape(random: &mut Random) -> Shape {
    let doubled = random.chance(300);
    let (block_units, middle_units) = draw_sizes(random, doubled);
    let budget = match block_units {
        1 => 2 + random.below(22),
        4 => 32 + random.below(68),
        _ => 100 + random.below(60),
    };
    let units = (budget * 3).next_multiple_of(block_units);
    let small_moves = !doubled && block_units == 1 && random.chance(400);
    let moves = !doubled && random.chance(700);
    let direct = random.chance(500);
    let frames = 1 + random.below(4);
    let middle_frames = if middle_units > 1 { units / middle_units } else { 0 };
    let frames = [if small_moves { units } else { frames }, middle_frames, units / block_units];
    let view = fake::Shape {
        units,
        middle_units,
        block_units,
        frames,
        small_moves,
        aside_units: if moves && !small_moves { WORKS * limits::VICTIMS_MAX } else { 0 },
        doubled,
        moves,
        refusals: random.pick(&[0, 50, 300]),
    };
    let config = Config {
        geometry: Geometry {
            units: units as u32,
            unit_bytes: OS_PAGE as u32,
            block_units: block_units as u32,
            middle_units: middle_units as u32,
        },
        budget_units: budget as u32,
        small: Class { moves: small_moves, frames: frames[0] as u32 },
        middle: Class { moves: true, frames: frames[1] as u32 },
        wide: Class { moves: true, frames: frames[2] as u32 },
        direct,
        hides_in_place: doubled && random.chance(500),
        ahead_units: 2 * block_units as u32,
    };
    let faults = Faults {
        // With a private server, this process copies the pages itself. So every read is complete when it starts.
        at_once: if direct { 1000 } else { random.pick(&[0, 500]) },
        full: random.pick(&[0, 300]),
        slow: random.pick(&[0, 300]),
        writes_later: !direct && random.chance(800),
        units_max: if random.chance(30) { units / 2 } else { usize::MAX },
        lost_at: random.chance(30).then(|| random.below(400) as u64),
    };
    let mut policies: Vec<&str> = policy::POLICIES.iter().map(|info| info.name).collect();
    policies.extend(["nru-timer", "auto"]);
    Shape {
        view,
        config,
        faults,
        policy: random.pick(&policies),
        prefetcher: random.pick(&["none", "sequential", "auto", "streams:gate=0", "cluster:gate=0", "leap:gate=0"]),
        threads: 1 + random.below(5),
        waits_in_handlers: doubled || random.chance(500),
        sequential: random.chance(300),
    }
}
