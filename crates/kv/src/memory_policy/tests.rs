use super::*;

const MIB: u64 = 1 << 20;

fn figures(used: u64) -> Figures {
    let budget = 1000 * MIB;
    Figures {
        budget,
        watermarks: POLICY.watermarks(budget, false),
        used,
        waste: 0,
        freed_slabs: 0,
        wants_measure: false,
        may_evict: true,
    }
}

#[test]
fn the_pagers_steps() {
    let (none, measured, purged) =
        (Done::default(), Done { measured: true, purged: false }, Done { measured: true, purged: true });
    let (below, above) = (figures(966 * MIB), figures(966 * MIB + 1));
    let (evict, empty) = (Action::Evict { target: 956 * MIB }, Action::EmptySlabs { target: 956 * MIB });
    for (what, figures, done, action) in [
        ("within the watermarks", below, none, Action::Rest),
        ("figures out of date", Figures { wants_measure: true, ..below }, none, Action::Measure),
        ("over the high one", above, none, Action::Measure),
        ("measured, within", Figures { wants_measure: true, ..below }, measured, Action::Rest),
        ("measured, over", above, measured, evict),
        ("over by waste", Figures { waste: 10 * MIB + 1, ..above }, measured, Action::Purge),
        ("over by little waste", Figures { waste: 10 * MIB, ..above }, measured, evict),
        ("purged in vain", Figures { waste: 10 * MIB + 1, ..above }, purged, evict),
        ("waste, but within", Figures { waste: 500 * MIB, ..below }, measured, Action::Rest),
        ("slabs freed, nearly full", Figures { freed_slabs: 8 * MIB + 1, ..below }, measured, Action::Purge),
        ("few slabs freed", Figures { freed_slabs: 8 * MIB, ..below }, measured, Action::Rest),
        (
            "slabs freed, half full",
            Figures { freed_slabs: 99 * MIB, ..figures(500 * MIB) },
            measured,
            Action::Rest,
        ),
        ("slabs freed, purged", Figures { freed_slabs: 99 * MIB, ..below }, purged, Action::Rest),
        ("nothing may be evicted", Figures { may_evict: false, ..above }, measured, empty),
    ] {
        assert_eq!(decide(&figures, done), action, "{what}");
    }
}

#[test]
fn watermarks_are_in_order_and_lower_for_a_persistent_bucket() {
    for budget in [8 * MIB, 100 * MIB, 1 << 40] {
        let (ephemeral, persistent) = (POLICY.watermarks(budget, false), POLICY.watermarks(budget, true));
        for Watermarks { high, low, refuse } in [ephemeral, persistent] {
            assert!(low < high && high < refuse && refuse < budget);
        }
        assert!(persistent.refuse < ephemeral.refuse && persistent.low < ephemeral.low);
    }
}

#[test]
fn new_data_is_granted_waits_for_room_or_is_refused() {
    let refuse = 975 * MIB;
    let full = figures(refuse);
    let wasteful = Figures { waste: 10 * MIB + 1, ..full };
    let make_room = Admission::MakeRoom { target: refuse - 10 };
    for (what, figures, bytes, has_purged, admission) in [
        ("up to the mark", figures(refuse - 10), 10, false, Admission::Granted),
        ("above it", full, 10, false, make_room),
        ("above it by waste", wasteful, 10, false, Admission::Purge),
        ("above it by little waste", Figures { waste: 10 * MIB, ..full }, 10, false, make_room),
        ("purged in vain", wasteful, 10, true, make_room),
        ("the whole budget", wasteful, refuse, false, Admission::Refused),
        ("nothing may go", Figures { may_evict: false, ..wasteful }, 10, false, Admission::Refused),
    ] {
        assert_eq!(admit(&figures, bytes, has_purged), admission, "{what}");
    }
}

#[test]
fn evicting_that_leaves_sparse_slabs_is_not_repeated() {
    let before = 976 * MIB;
    for (used, waste, ends) in [(975, 31, true), (967, 31, true), (966, 31, false), (975, 30, false)] {
        let after = Figures { waste: waste * MIB, ..figures(used * MIB) };
        assert_eq!(left_sparse_slabs(before, &after), ends, "{used} used, {waste} wasted");
    }
}

/// A bucket as far as decisions see it: eviction frees bytes, a part of which stays as waste until pages are given
/// back.
struct Simulated {
    figures: Figures,
    /// Waste that the next measurement will find.
    unmeasured: u64,
    /// Per cent of what is evicted that leaves pages which only the defragmenter gives back.
    sparse_percent: u64,
}

impl Simulated {
    fn act(&mut self, action: Action) {
        let figures = &mut self.figures;
        match action {
            Action::Rest => {}
            Action::Measure => {
                figures.used += std::mem::take(&mut self.unmeasured);
                figures.wants_measure = false;
            }
            Action::Purge => {
                let given_back = figures.waste / 100 * (100 - self.sparse_percent);
                figures.used -= given_back.min(figures.used);
                figures.waste -= given_back;
                figures.freed_slabs = 0;
            }
            Action::EmptySlabs { target } | Action::Evict { target } => {
                let excess = figures.used - target;
                let sparse = excess / 100 * self.sparse_percent;
                figures.used -= excess - sparse;
                figures.waste += sparse;
            }
        }
    }

    /// Acts as the pager does, for at most this many turns. Returns how many steps it took.
    fn turn(&mut self, turns: usize) -> usize {
        let mut steps = 0;
        for _ in 0..turns {
            let mut done = Done::default();
            loop {
                let (before, action) = (self.figures.used, decide(&self.figures, done));
                self.act(action);
                steps += 1;
                match action {
                    Action::Rest | Action::EmptySlabs { .. } => return steps,
                    Action::Measure => done.measured = true,
                    Action::Purge => done.purged = true,
                    Action::Evict { .. } if left_sparse_slabs(before, &self.figures) => return steps,
                    Action::Evict { .. } => break,
                }
            }
        }
        steps
    }
}

/// Writers fill a bucket for a long time, by steps of any size: the pager always terminates, and unless slabs stay
/// sparse each of its turns leaves the bucket within the watermarks.
#[test]
fn a_simulated_bucket_stays_within_its_watermarks() {
    for sparse_percent in [0, 20, 60, 100] {
        let mut bucket = Simulated { figures: figures(0), unmeasured: 0, sparse_percent };
        let mut random = 7_u64;
        for step in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let bytes = (random >> 33) % (2 * MIB);
            match admit(&bucket.figures, bytes, true) {
                Admission::Granted => bucket.figures.used += bytes,
                Admission::Purge => unreachable!("it has purged"),
                Admission::MakeRoom { target } => bucket.act(Action::Evict { target }),
                Admission::Refused => unreachable!("values are small, and may go"),
            }
            if random.is_multiple_of(64) {
                bucket.unmeasured += bytes / 8;
                bucket.figures.wants_measure = true;
            }
            let steps = bucket.turn(8);
            let Figures { used, watermarks, .. } = bucket.figures;
            assert!(steps <= 32, "{steps} steps at step {step}, {sparse_percent} % sparse");
            if sparse_percent <= 20 {
                assert!(used <= watermarks.high, "{used} at step {step}, {sparse_percent} % sparse");
            }
            // The defragmenter runs.
            if step % 100 == 0 {
                let gained = bucket.figures.waste;
                bucket.figures.waste = 0;
                bucket.figures.used -= gained.min(bucket.figures.used);
            }
        }
    }
}

/// Figures of a soak (200 clients, values of 1 byte to 20 MiB, a bucket of 1 GiB) with the decisions made then: after a
/// change of a threshold, this shows what it would have changed.
#[test]
fn what_was_decided_in_a_soak_is_decided_still() {
    let recorded = include_str!("../../testdata/memory_policy.csv");
    let mut seen = std::collections::BTreeMap::new();
    for line in recorded.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(',').collect();
        let number = |at: usize| fields[at].parse::<u64>().expect("a number");
        let flag = |at: usize| fields[at] == "1";
        let budget = number(0);
        let figures = Figures {
            budget,
            watermarks: POLICY.watermarks(number(1), flag(2)),
            used: number(3),
            waste: number(4),
            freed_slabs: number(5),
            wants_measure: flag(6),
            may_evict: flag(7),
        };
        let done = Done { measured: flag(8), purged: flag(9) };
        let action = format!("{:?}", decide(&figures, done));
        let action = action.split(' ').next().unwrap_or_default().to_owned();
        assert_eq!(action, fields[10], "{line}");
        *seen.entry(action).or_insert(0) += 1;
    }
    assert!(seen.len() >= 4 && seen.values().all(|count| *count >= 5), "{seen:?}");
}
