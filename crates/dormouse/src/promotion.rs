//! `dormouse bucket promote`: makes the best of what is left the active of each vBucket.
//!
//! ```text
//!   ask all members what they have ──> would enough of them answer? ──> they promise a new term, and stop acting in lower ones
//!        ──> per vBucket: [`elect`] ──> the elected become active, the others their replicas
//! ```
//! Nothing is changed before it is known that enough members answer. What they say after the promise decides: before,
//! the old active may go on. A member that does not promise counts as missing. Each member promises a term to one
//! promotion only, so of two that run at the same time at most one gets a majority.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::ops::RangeInclusive;

use anyhow::{Context as _, bail, ensure};
use kv::election::{Answer, Lacks, elect};
use kv::terms::Rank;
use serde_json::{Value, json};
use ureq::http::Method;

use crate::bucket_command::BucketName;
use crate::json_document::{list, number, pretty, text_of};
use crate::node_client::{NodeArgs, NodeClient};
use crate::terminal::shown;

/// Options of `dormouse bucket promote`.
#[derive(Debug, clap::Args)]
pub struct Promote {
    #[command(flatten)]
    bucket: BucketName,
    /// Promote even if too few members answer: durable writes that were acknowledged may be lost
    #[arg(long)]
    force: bool,
    /// Print JSON: the term, who answered, and the active of each vBucket
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: NodeArgs,
}

/// A node that is named in a chain.
struct Member {
    name: String,
    client: Option<NodeClient>,
    /// Its vBuckets by number, or why it has not answered.
    vbuckets: Result<BTreeMap<u16, Value>, String>,
}

/// A vBucket and the members of its chains, as places in the list of members.
struct Group {
    chains: Vec<Vec<usize>>,
}

/// What was decided for a vBucket.
#[derive(Clone, PartialEq, Eq)]
struct Decision {
    chain: Vec<String>,
    lost: Lacks,
}

impl Member {
    fn answer(&self, vb: u16) -> Option<Answer> {
        let shown = self.vbuckets.as_ref().ok()?.get(&vb)?;
        let rank = Rank { term: number(shown, "/history_term"), seqno: number(shown, "/complete_seqno") };
        // A copy without any history is new, or its files were taken away.
        let lacks = match is(shown, "emptied") || rank == Rank::default() {
            true => Lacks::Anything,
            false => Lacks::from_name(shown.get("may_lack").and_then(Value::as_str)),
        };
        Some(Answer { rank, is_damaged: is(shown, "damaged"), lacks })
    }

    /// Its whole vBuckets among these, in ranges.
    fn ranges(&self, among: impl Fn(u16) -> bool) -> Vec<RangeInclusive<u16>> {
        let vbuckets = self.vbuckets.as_ref().into_iter().flatten();
        ranges(vbuckets.filter(|(vb, shown)| !is(shown, "damaged") && among(**vb)).map(|(vb, _)| *vb))
    }

    /// Changes roles, and takes the answer as what it has.
    fn change(
        &mut self,
        path: &str,
        vbs: &RangeInclusive<u16>,
        role: &[(&str, String)],
    ) -> anyhow::Result<()> {
        let client = self.client.as_ref().with_context(|| format!("{}: no address", self.name))?;
        let range = [("first", vbs.start().to_string()), ("last", vbs.end().to_string())];
        let answer = client.send(Method::POST, path, &[role, &range].concat(), &[])?;
        let answer = serde_json::from_str(&answer.body).with_context(|| format!("{path}: no JSON"))?;
        if let Ok(vbuckets) = &mut self.vbuckets {
            vbuckets.extend(by_number(&answer));
        }
        Ok(())
    }
}

fn is(shown: &Value, what: &str) -> bool {
    shown.get(what).is_some_and(|is_so| is_so == true)
}

fn by_number(answer: &Value) -> BTreeMap<u16, Value> {
    let number = |shown: &Value| u16::try_from(number(shown, "/vbucket")).ok();
    list(Some(answer)).filter_map(|shown| Some((number(shown)?, shown.clone()))).collect()
}

/// Adjacent numbers as ranges.
fn ranges(numbers: impl Iterator<Item = u16>) -> Vec<RangeInclusive<u16>> {
    let mut ranges: Vec<RangeInclusive<u16>> = Vec::new();
    for number in numbers {
        match ranges.last_mut().filter(|range| range.end() + 1 == number) {
            Some(range) => *range = *range.start()..=number,
            None => ranges.push(number..=number),
        }
    }
    ranges
}

/// Runs the command.
pub fn run(arguments: &Promote) -> anyhow::Result<()> {
    let Promote { bucket, force, json, node } = arguments;
    let client = node.client()?;
    let path = format!("{}/vbuckets", bucket.path());
    let mut members = members(client, &path)?;
    let groups = groups(&mut members)?;
    // Before anything is changed.
    for (vb, group) in &groups {
        elect(&group.chains, &answers(&members, *vb), *force).with_context(|| refusal(*vb, &members))?;
    }
    let promised = |member: &Member| {
        let shown = member.vbuckets.as_ref().into_iter().flat_map(BTreeMap::values);
        shown.map(|shown| number(shown, "/term")).max()
    };
    let term = members.iter().filter_map(promised).max().unwrap_or(0) + 1;
    // Of two that promote at once, one is refused by each member: both may have chosen this term.
    let by = format!("promotion {:016x}", RandomState::new().build_hasher().finish());
    let ballot = [("term", term.to_string()), ("by", by)];
    let stands_by = [&[("state", "replica".to_owned()), ("source", String::new())], &ballot[..]].concat();
    for member in &mut members {
        for vbs in member.ranges(|vb| groups.contains_key(&vb)) {
            // It counts as missing: its disk is full, or it has promised the term to somebody else.
            if let Err(error) = member.change(&path, &vbs, &stands_by) {
                member.vbuckets = Err(format!("it has not promised term {term}: {error:#}"));
                break;
            }
        }
    }
    let mut decisions = BTreeMap::new();
    for (vb, group) in &groups {
        let elected =
            elect(&group.chains, &answers(&members, *vb), *force).with_context(|| refusal(*vb, &members))?;
        let mut chain: Vec<String> = names(&members, group.chains.first().into_iter().flatten());
        let active = members.get(elected.at).map(|member| member.name.clone()).unwrap_or_default();
        chain.retain(|name| *name != active);
        chain.insert(0, active);
        decisions.insert(*vb, Decision { chain, lost: elected.lost });
    }
    carry_out(&mut members, &path, &ballot, &decisions)?;
    let text = if *json {
        pretty(&document(term, &members, &decisions))?
    } else {
        report(term, &members, &decisions)
    };
    crate::print(&text)
}

/// The node that is asked, and its peers, with what each has.
fn members(client: NodeClient, path: &str) -> anyhow::Result<Vec<Member>> {
    let replication = client.json("/pools/default/replication")?;
    let peers = list(replication.get("peers")).map(|peer| {
        let port = |name: &str| peer.get(name).and_then(Value::as_u64);
        let ports = if client.is_tls() { port("httpTls") } else { port("http") };
        let client = ports.map(|port| client.at(text_of(peer, "host"), port));
        (text_of(peer, "name").to_owned(), client)
    });
    let peers: Vec<_> = peers.collect();
    let own = (text_of(&replication, "node").to_owned(), Some(client));
    let ask = |(name, client): (String, Option<NodeClient>)| {
        let vbuckets = match &client {
            Some(client) => {
                client.json(path).map(|answer| by_number(&answer)).map_err(|error| format!("{error:#}"))
            }
            None => Err("replication.peers has no HTTP port of it".to_owned()),
        };
        Member { name, client, vbuckets }
    };
    Ok(std::iter::once(own).chain(peers).map(ask).collect())
}

/// The chains of each vBucket, as the member of the highest term has them. Members that are no peers are added.
fn groups(members: &mut Vec<Member>) -> anyhow::Result<BTreeMap<u16, Group>> {
    let numbers: BTreeSet<u16> = members
        .iter()
        .filter_map(|member| member.vbuckets.as_ref().ok())
        .flat_map(BTreeMap::keys)
        .copied()
        .collect();
    let mut groups = BTreeMap::new();
    for vb in numbers {
        let shown = members.iter().filter_map(|member| member.vbuckets.as_ref().ok()?.get(&vb));
        let newest = shown.filter(|shown| shown.get("topology").is_some_and(Value::is_array));
        let topology =
            newest.max_by_key(|shown| number(shown, "/term")).and_then(|shown| shown.get("topology"));
        let Some(topology) = topology.cloned() else { continue };
        let mut place = |name: &str| match members.iter().position(|member| member.name == name) {
            Some(at) => at,
            None => {
                let vbuckets = Err("it is not among replication.peers of the node that was asked".to_owned());
                members.push(Member { name: name.to_owned(), client: None, vbuckets });
                members.len() - 1
            }
        };
        let chain = |chain: &Value| list(Some(chain)).filter_map(Value::as_str).map(&mut place).collect();
        groups.insert(vb, Group { chains: list(Some(&topology)).map(chain).collect() });
    }
    ensure!(
        !groups.is_empty(),
        "no vBucket of the bucket has a topology on any node that answers: there is nobody to promote"
    );
    Ok(groups)
}

fn answers(members: &[Member], vb: u16) -> Vec<Option<Answer>> {
    members.iter().map(|member| member.answer(vb)).collect()
}

fn names<'a>(members: &[Member], places: impl Iterator<Item = &'a usize>) -> Vec<String> {
    places.filter_map(|at| members.get(*at)).map(|member| member.name.clone()).collect()
}

fn refusal(vb: u16, members: &[Member]) -> String {
    let missing = members.iter().filter_map(|member| {
        let why = match (&member.vbuckets, member.answer(vb)) {
            (Err(why), _) => why,
            (Ok(_), Some(Answer { is_damaged: true, .. })) => "damaged",
            (Ok(_), Some(Answer { lacks: Lacks::Unwritten, .. })) => {
                "ended without a clean stop: may lack what was only in memory"
            }
            (Ok(_), Some(Answer { lacks: Lacks::Anything, .. })) => "may have forgotten what it had",
            _ => return None,
        };
        Some(format!("\n  {}: {why}", shown(&member.name)))
    });
    format!(
        "vBucket {vb} is not promoted: acknowledged durable writes might be lost. Bring the missing nodes back, or \
         repeat with --force. These do not count:{}",
        missing.collect::<String>()
    )
}

/// The elected first, then those that copy from them.
fn carry_out(
    members: &mut [Member],
    path: &str,
    ballot: &[(&'static str, String)],
    decisions: &BTreeMap<u16, Decision>,
) -> anyhow::Result<()> {
    let mut kinds: Vec<&Decision> = Vec::new();
    for decision in decisions.values() {
        if !kinds.contains(&decision) {
            kinds.push(decision);
        }
    }
    for is_active in [true, false] {
        for decision in &kinds {
            let Some(active) = decision.chain.first() else { continue };
            let topology = [("topology", json!([decision.chain]).to_string())];
            let role = match is_active {
                true => vec![("state", "active".to_owned())],
                false => vec![("state", "replica".to_owned()), ("source", active.clone())],
            };
            let role = [role.as_slice(), &topology, ballot].concat();
            let is_meant = |name: &String| decision.chain.contains(name) && (name == active) == is_active;
            for member in members.iter_mut().filter(|member| is_meant(&member.name)) {
                for vbs in member.ranges(|vb| decisions.get(&vb) == Some(*decision)) {
                    let what = if is_active { "was not promoted" } else { "does not copy yet" };
                    let context =
                        format!("{}: vBuckets {} to {}: {what}", member.name, vbs.start(), vbs.end());
                    member.change(path, &vbs, &role).context(context)?;
                }
            }
        }
    }
    if decisions.is_empty() {
        bail!("nothing was decided");
    }
    Ok(())
}

fn document(term: u64, members: &[Member], decisions: &BTreeMap<u16, Decision>) -> Value {
    let answered =
        members.iter().map(|member| json!({ "node": member.name, "error": member.vbuckets.as_ref().err() }));
    let mut all = Vec::new();
    for (vb, Decision { chain, lost }) in decisions {
        all.push(json!({
            "vbucket": vb,
            "chain": chain,
            "mayHaveLost": *lost > Lacks::Nothing,
            "mayHaveLostPersisted": *lost > Lacks::Unwritten,
        }));
    }
    json!({
        "term": term,
        "nodes": answered.collect::<Vec<_>>(),
        "vbuckets": all,
    })
}

fn report(term: u64, members: &[Member], decisions: &BTreeMap<u16, Decision>) -> String {
    let mut text = format!("Term {term}\n");
    for member in members {
        let name = shown(&member.name);
        let chosen =
            decisions.values().filter(|decision| decision.chain.first() == Some(&member.name)).count();
        text += &match &member.vbuckets {
            Ok(_) => format!("  {name} answered, and is the active of {chosen} vBuckets\n"),
            Err(why) => format!("  {name} did not answer: {why}\n"),
        };
    }
    if members.iter().any(|member| member.vbuckets.is_err()) {
        text += "A node that did not answer must become a replica in this term: once it is back, run this again.\n";
    }
    let count = |lost| decisions.values().filter(|decision| decision.lost == lost).count();
    let (anything, unwritten) = (count(Lacks::Anything), count(Lacks::Unwritten));
    if anything > 0 {
        text += &format!(
            "{anything} vBuckets may have lost durable writes that were acknowledged: too few of their members \
             answered and have forgotten nothing.\n"
        );
    }
    if unwritten > 0 {
        text += &format!(
            "{unwritten} vBuckets may have lost durable writes that were acknowledged when they were in memory \
             (majority, majorityAndPersistActive): too few of their members have neither ended without a clean stop \
             nor caught up since. What was acknowledged as persistToMajority is there.\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_ranges() {
        assert_eq!(ranges([].into_iter()), []);
        assert_eq!(ranges([0, 1, 2, 5, 7, 8].into_iter()), [0..=2, 5..=5, 7..=8]);
    }
}
