//! The scripts of the experiment, step by step.

use super::load::{Content, DOCUMENT_KEY, KEY_LEAST, Load, document_bytes};
use crate::machine;
use crate::random::Random;
use crate::report::{bytes, count};
use anyhow::{Result, bail};
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// Two decay periods of an allocator.
const REST: Duration = super::SETTLE;
/// Rest after a mass deletion.
const LONG_REST: Duration = Duration::from_secs(30);

/// Iterations of the append test, and the fractions (1/n) of the documents that the phases of each work on.
const ITERATIONS: u32 = 5;
const PHASES: [u32; 3] = [1, 2, 4];
/// Number of sizes on the ladder, the smallest and the largest.
const RUNGS: u32 = 50;
const RUNG_LEAST: f64 = 8.0;
const RUNG_MOST: f64 = 8192.0;
/// Number of lengths of growing keys, and the bytes from one to the next.
const KEY_LENGTHS: u8 = 55;
const KEY_STEP: u8 = 4;
/// Value of an item whose key grows.
const KEYED_VALUE: u16 = 100;
/// Fraction of the items that keep growing to the end, for ladder and keys: with 20 rounds, 7.73 % freeze in each.
const UNFROZEN: f64 = 0.2;
/// A switch of sizes writes this multiple of the live data.
const TURNOVER: u64 = 5;
/// Budget of a server: a multiple of the load's peak, plus a constant.
const BUDGET_FACTOR: u64 = 4;
const BUDGET_LEAST: u64 = 512 << 20;

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Case {
    /// The append-and-rewrite test.
    Append,
    /// Values that grow through many sizes, some stopping at each.
    Ladder,
    /// Keys that grow.
    Keys,
    /// All items in one distribution of sizes, then in another.
    Switch,
    /// Documents grow, half of them are deleted, small ones are added.
    Halves,
}

/// A part of a case; afterwards memory is read after a rest.
#[derive(Clone, Copy)]
pub struct Step {
    /// Its name in tables.
    pub name: &'static str,
    /// Time before memory is read.
    pub rest: Duration,
    run: fn(&mut Load, &Sizes) -> Result<()>,
}

impl Step {
    const fn new(name: &'static str, rest: Duration, run: fn(&mut Load, &Sizes) -> Result<()>) -> Self {
        Self { name, rest, run }
    }

    /// Performs the step.
    pub fn run(&self, load: &mut Load, sizes: &Sizes) -> Result<()> {
        (self.run)(load, sizes)?;
        load.finish_step()
    }
}

/// Sizes of all cases.
#[derive(Clone, Debug, Serialize)]
pub struct Sizes {
    documents: u32,
    ladder_items: u32,
    ladder_rounds: u32,
    keyed_items: u32,
    /// Live key and value bytes while sizes switch.
    switch_bytes: u64,
    halves_items: u32,
}

impl Sizes {
    /// The sizes of a quick or a full run, scaled.
    pub fn new(quick: bool, scale: f64) -> Self {
        let scaled = |items: f64| ((items * scale) as u32).max(2_000);
        if quick {
            return Self {
                documents: scaled(200e3),
                ladder_items: scaled(60e3),
                ladder_rounds: 2,
                keyed_items: scaled(150e3),
                switch_bytes: (scale * 100e6) as u64,
                halves_items: scaled(150e3),
            };
        }
        // The append test uses as many documents as its definition says, or as many as fit in memory twice.
        let fitting = machine::available_bytes() / 2 / 3_000;
        Self {
            documents: scaled(5e6).min(u32::try_from(fitting).unwrap_or(u32::MAX)),
            ladder_items: scaled(100e3),
            ladder_rounds: 20,
            keyed_items: scaled(1e6),
            switch_bytes: (scale * 1e9) as u64,
            halves_items: scaled(2e6),
        }
    }
}

impl fmt::Display for Sizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "append: {} documents; ladder: {} items, {} rounds; keys: {} items; switch: {} live; halves: {} documents",
            count(self.documents),
            count(self.ladder_items),
            self.ladder_rounds,
            count(self.keyed_items),
            bytes(self.switch_bytes),
            count(self.halves_items)
        )
    }
}

impl Case {
    /// All cases in the order they are run and printed.
    pub const ALL: [Self; 5] = [Self::Append, Self::Ladder, Self::Keys, Self::Switch, Self::Halves];

    /// Its name in tables and options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Append => "append",
            Self::Ladder => "ladder",
            Self::Keys => "keys",
            Self::Switch => "switch",
            Self::Halves => "halves",
        }
    }

    /// The cases with these names; all if none are given.
    pub fn choose(names: &[String]) -> Result<Vec<Self>> {
        let known = Self::ALL.map(Self::name).join(", ");
        for name in names {
            if Self::ALL.iter().all(|case| case.name() != name) {
                bail!("unknown case `{name}`: {known}");
            }
        }
        let is_chosen = |case: &Self| names.is_empty() || names.iter().any(|name| name == case.name());
        Ok(Self::ALL.into_iter().filter(is_chosen).collect())
    }

    /// What its values are made of.
    pub fn content(self) -> Content {
        if self == Self::Append { Content::Objects } else { Content::Noise }
    }

    /// Its steps.
    pub fn steps(self) -> &'static [Step] {
        const APPEND: [Step; 2] =
            [Step::new("loaded", REST, load_documents), Step::new("rewritten", REST, rewrite_documents)];
        const LADDER: [Step; 1] = [Step::new("climbed", REST, climb)];
        const KEYS: [Step; 1] = [Step::new("grown", REST, grow_keys)];
        const SWITCH: [Step; 3] = [
            Step::new("small", REST, turn_over_small),
            Step::new("half deleted", LONG_REST, delete_half),
            Step::new("large", REST, turn_over_large),
        ];
        const HALVES: [Step; 4] = [
            Step::new("loaded", REST, load_sizes),
            Step::new("grown", REST, grow_values),
            Step::new("half deleted", LONG_REST, delete_half),
            Step::new("refilled", REST, refill),
        ];
        match self {
            Self::Append => &APPEND,
            Self::Ladder => &LADDER,
            Self::Keys => &KEYS,
            Self::Switch => &SWITCH,
            Self::Halves => &HALVES,
        }
    }

    /// Approximate peak of key and value bytes.
    pub fn peak_bytes(self, sizes: &Sizes) -> u64 {
        match self {
            Self::Append => u64::from(sizes.documents) * 1_600,
            Self::Ladder => u64::from(sizes.ladder_items) * RUNG_MOST as u64,
            Self::Keys => u64::from(sizes.keyed_items) * 400,
            Self::Switch => sizes.switch_bytes * 3 / 2,
            Self::Halves => u64::from(sizes.halves_items) * 2_000,
        }
    }

    /// A budget that holds the case in any server without eviction.
    pub fn budget_bytes(self, sizes: &Sizes) -> u64 {
        self.peak_bytes(sizes) * BUDGET_FACTOR + BUDGET_LEAST
    }
}

fn load_documents(load: &mut Load, sizes: &Sizes) -> Result<()> {
    for number in 0..sizes.documents {
        let objects = load.between(11, 22);
        load.put(number, DOCUMENT_KEY, document_bytes(objects))?;
    }
    Ok(())
}

fn rewrite_documents(load: &mut Load, sizes: &Sizes) -> Result<()> {
    for part in PHASES.repeat(ITERATIONS as usize) {
        let documents = sizes.documents / part;
        load.append(documents / 4 * 3, documents / 5 * 4)?;
    }
    Ok(())
}

/// Size of a rung: each is the same factor above the previous one.
fn rung(step: u32) -> u16 {
    let part = f64::from(step) / f64::from(RUNGS - 1);
    (RUNG_LEAST * (RUNG_MOST / RUNG_LEAST).powf(part)).round() as u16
}

/// In each round every item that has not frozen climbs the whole ladder; those that freeze in this round stop at a
/// random rung.
fn climb(load: &mut Load, sizes: &Sizes) -> Result<()> {
    let freezing = 1.0 - UNFROZEN.powf(1.0 / f64::from(sizes.ladder_rounds));
    let mut living: Vec<u32> = (0..sizes.ladder_items).collect();
    for _ in 0..sizes.ladder_rounds {
        let stops: Vec<u32> = living
            .iter()
            .map(|_| if chance(load, freezing) { load.between(0, RUNGS - 1) } else { RUNGS })
            .collect();
        for step in 0..RUNGS {
            for (&number, _) in living.iter().zip(&stops).filter(|(_, stop)| step <= **stop) {
                load.put(number, DOCUMENT_KEY, rung(step))?;
            }
        }
        let goes_on = living.iter().zip(&stops).filter(|(_, stop)| **stop == RUNGS);
        living = goes_on.map(|(&number, _)| number).collect();
    }
    Ok(())
}

/// True with this probability.
fn chance(load: &mut Load, probability: f64) -> bool {
    (load.random.next() as u32) < (probability * f64::from(u32::MAX)) as u32
}

fn grow_keys(load: &mut Load, sizes: &Sizes) -> Result<()> {
    let freezing = 1.0 - UNFROZEN.powf(1.0 / f64::from(KEY_LENGTHS - 1));
    for number in 0..sizes.keyed_items {
        load.put(number, KEY_LEAST, KEYED_VALUE)?;
    }
    let mut living: Vec<u32> = (0..sizes.keyed_items).collect();
    for length in 1..KEY_LENGTHS {
        living.retain(|_| !chance(load, freezing));
        for &number in &living {
            load.rename(number, KEY_LEAST + length * KEY_STEP)?;
        }
    }
    Ok(())
}

fn turn_over_small(load: &mut Load, sizes: &Sizes) -> Result<()> {
    turn_over(load, sizes, 100, 200)
}

fn turn_over_large(load: &mut Load, sizes: &Sizes) -> Result<()> {
    turn_over(load, sizes, 1_000, 2_000)
}

/// Writes several times the live size in new items, deleting random ones whenever there are too many.
fn turn_over(load: &mut Load, sizes: &Sizes, least: u32, most: u32) -> Result<()> {
    let mut living = living(load);
    let mut written = 0;
    let mut number = load.numbers();
    while written < sizes.switch_bytes * TURNOVER {
        let value = load.between(least, most) as u16;
        load.put(number, DOCUMENT_KEY, value)?;
        written += u64::from(DOCUMENT_KEY) + u64::from(value);
        living.push(number);
        number += 1;
        while load.payload_bytes > sizes.switch_bytes {
            let at = Random::below(load.random.next(), living.len() as u32);
            load.remove(living.swap_remove(at as usize))?;
        }
    }
    Ok(())
}

fn living(load: &Load) -> Vec<u32> {
    (0..load.numbers()).filter(|&number| load.bytes_of(number).is_some()).collect()
}

fn delete_half(load: &mut Load, _: &Sizes) -> Result<()> {
    for number in living(load) {
        if chance(load, 0.5) {
            load.remove(number)?;
        }
    }
    Ok(())
}

fn load_sizes(load: &mut Load, sizes: &Sizes) -> Result<()> {
    for number in 0..sizes.halves_items {
        let value = load.between(500, 1_500) as u16;
        load.put(number, DOCUMENT_KEY, value)?;
    }
    Ok(())
}

/// Makes each value 1.5 to 2 times as long.
fn grow_values(load: &mut Load, _: &Sizes) -> Result<()> {
    for number in living(load) {
        if let Some((key_bytes, value_bytes)) = load.bytes_of(number) {
            let percent = load.between(150, 200);
            load.put(number, key_bytes, (u32::from(value_bytes) * percent / 100) as u16)?;
        }
    }
    Ok(())
}

/// Doubles the number of bytes, with small items.
fn refill(load: &mut Load, _: &Sizes) -> Result<()> {
    let most = load.payload_bytes * 2;
    let mut number = load.numbers();
    while load.payload_bytes < most {
        let value = load.between(200, 600) as u16;
        load.put(number, DOCUMENT_KEY, value)?;
        number += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ladder_has_fifty_sizes() {
        let sizes: Vec<u16> = (0..RUNGS).map(rung).collect();
        assert_eq!((sizes[0], sizes[49]), (8, 8192));
        assert!(sizes.windows(2).all(|pair| pair[0] < pair[1]), "{sizes:?}");
    }

    #[test]
    fn freezing_is_what_the_definition_says() {
        let full = Sizes::new(false, 1.0);
        let freezing = 1.0 - UNFROZEN.powf(1.0 / f64::from(full.ladder_rounds));
        assert!((freezing - 0.0773).abs() < 0.0001);
        assert!(KEY_LEAST as u32 + u32::from(KEY_LENGTHS - 1) * u32::from(KEY_STEP) <= 250);
    }

    #[test]
    fn cases_by_name() {
        assert_eq!(Case::choose(&[]).unwrap().len(), Case::ALL.len());
        assert_eq!(Case::choose(&["halves".to_owned()]).unwrap(), [Case::Halves]);
        assert!(Case::choose(&["quarters".to_owned()]).is_err());
    }
}
