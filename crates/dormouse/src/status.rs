//! `dormouse status`: a running node on one page.

use crate::json_document::{entries, list, name_of, number, pretty, strings};
use crate::node_client::{NodeArgs, NodeClient};
use crate::quantity::{UNKNOWN, bytes, duration, percent};
use crate::terminal::{aligned, shown};
use clap::Args;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::process::ExitCode;

/// Exit codes beside success and failure to ask.
const SOMETHING_IS_WRONG: u8 = 3;
const DOES_NOT_SERVE: u8 = 4;

/// Options of `dormouse status`.
#[derive(Debug, Args)]
#[command(after_help = "Exit codes:
  0  it serves, and nothing is wrong
  1  it could not be asked
  2  a mistake in the command line
  3  it serves, but something is wrong: damaged vBuckets, a full disk
  4  it does not serve: it warms up, or stops

Examples:
  dormouse status
  dormouse status --node db1:8091 --user ada --password-file password
  dormouse status --node https://db1:18091 --ca ca.pem --json
  dormouse status >/dev/null || systemctl status dormouse
  dormouse status --health")]
pub struct Status {
    #[command(flatten)]
    node: NodeArgs,
    /// Print JSON: the answers of /health/ready, /memory and /figures
    #[arg(long)]
    json: bool,
    /// Ask only for health, which takes no login: for container health checks
    #[arg(long)]
    health: bool,
}

/// Asks the node and prints what it says.
pub fn run(arguments: &Status) -> anyhow::Result<ExitCode> {
    let client = arguments.node.client()?;
    let (status, health) = client.health()?;
    let serves = status == 200 || client.get("/health")?.status == 200;
    crate::print(&answer(arguments, &client, &health)?)?;
    Ok(match (serves, status) {
        (false, _) => ExitCode::from(DOES_NOT_SERVE),
        (true, 200) => ExitCode::SUCCESS,
        (true, _) => ExitCode::from(SOMETHING_IS_WRONG),
    })
}

fn answer(arguments: &Status, client: &NodeClient, health: &Value) -> anyhow::Result<String> {
    if arguments.health {
        return Ok(if arguments.json { health.to_string() } else { state(health) } + "\n");
    }
    let (memory, figures) = (client.json("/memory")?, client.json("/figures")?);
    if arguments.json {
        let all = json!({ "health": health, "memory": memory, "figures": figures });
        return pretty(&all);
    }
    page(client.base(), health, &memory, &figures)
}

/// What is wrong in a few words, or "ok".
pub fn state(health: &Value) -> String {
    let reasons = strings(health.get("reasons"));
    if reasons.is_empty() { "ok".to_owned() } else { shown(&reasons.join(", ")) }
}

fn page(base: &str, health: &Value, memory: &Value, figures: &Value) -> anyhow::Result<String> {
    let mut text = String::new();
    let up_s = number(figures, "/uptimeMs") / 1000;
    writeln!(text, "{base}: {}, up {}", state(health), duration(up_s))?;
    for (name, wrong) in entries(health.get("buckets")) {
        writeln!(text, "  {}: {}", shown(name), what_is_wrong(wrong))?;
    }
    let resident = number(memory, "/residentBytes");
    writeln!(
        text,
        "\n{} resident; buckets may use {}",
        bytes(resident),
        bytes(number(memory, "/limitBytes"))
    )?;
    for part in list(memory.get("parts")) {
        let part_bytes = number(part, "/bytes");
        let share = percent(part_bytes, resident);
        writeln!(text, "  {:<10} {:>10} {share:>8}", shown(&name_of(part)), bytes(part_bytes))?;
    }
    writeln!(
        text,
        "\n{} connections, {} in their buffers",
        number(figures, "/node/connections"),
        bytes(number(figures, "/node/client_buffer_bytes"))
    )?;
    text += &tenants(memory, figures);
    Ok(text)
}

/// A line for each bucket and database.
fn tenants(memory: &Value, figures: &Value) -> String {
    let mut rows = vec![
        ["bucket", "kind", "items", "resident", "budget", "used", "hits", "unflushed"].map(str::to_owned),
    ];
    for holder in list(memory.get("parts")) {
        for part in list(holder.get("parts")).filter(|part| part.get("about").is_some()) {
            let about = |name: &str| number(part, &format!("/about/{name}"));
            let (resident, budget) = (number(part, "/bytes"), about("budgetBytes"));
            let name = name_of(part);
            let meters = figures.get("buckets").and_then(|buckets| buckets.get(&name));
            let meter = |meter: &str| meters.and_then(|meters| meters.get(meter)).and_then(Value::as_u64);
            let hits = meter("get_hits")
                .zip(meter("cmd_get"))
                .map_or(UNKNOWN.to_owned(), |(hits, all)| percent(hits, all));
            rows.push([
                shown(&name),
                shown(part.pointer("/about/kind").and_then(Value::as_str).unwrap_or(UNKNOWN)),
                about("items").to_string(),
                bytes(resident),
                bytes(budget),
                percent(resident, budget),
                hits,
                meter("unflushed_items").map_or(UNKNOWN.to_owned(), |items| items.to_string()),
            ]);
        }
    }
    if rows.len() == 1 {
        return "\nThere is no bucket and no database.\n".to_owned();
    }
    "\n".to_owned() + &aligned(&rows, 2)
}

fn what_is_wrong(bucket: &Value) -> String {
    let mut words = Vec::new();
    let (done, all) = (number(bucket, "/vBucketsDone"), number(bucket, "/vBuckets"));
    if done < all {
        words.push(format!("warming up: {done} of {all} vBuckets read"));
    }
    let damaged = number(bucket, "/vBucketsDamaged");
    if damaged > 0 {
        words.push(format!("{damaged} vBuckets are damaged and not served"));
    }
    if bucket.get("diskFull").and_then(Value::as_bool) == Some(true) {
        words.push("the disk is full: writes are refused".to_owned());
    }
    words.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_what_is_wrong_and_aligns_what_is_there() {
        let health = json!({ "status": "damaged", "reasons": ["damaged", "disk_full"], "buckets": { "orders": {
            "vBuckets": 1024, "vBucketsDone": 1024, "vBucketsDamaged": 2, "diskFull": true } } });
        let about = |kind: &str| json!({ "kind": kind, "budgetBytes": 1 << 30, "items": 1000 });
        let memory = json!({ "residentBytes": 400 << 20, "limitBytes": 4_u64 << 30, "parts": [
            { "name": "program", "bytes": 100 << 20 },
            { "name": "buckets", "bytes": 300 << 20, "parts": [
                { "name": "orders\u{1b}[2J", "bytes": 300 << 20, "about": about("persistent") }] },
        ] });
        let figures = json!({ "uptimeMs": 90_061_000, "node": { "connections": 7, "client_buffer_bytes": 2048 },
            "buckets": { "orders\u{1b}[2J": { "get_hits": 9, "cmd_get": 10, "unflushed_items": 5 } } });
        let page = page("http://x:1", &health, &memory, &figures).unwrap();
        let expected = "http://x:1: damaged, disk_full, up 1 d 1 h
  orders: 2 vBuckets are damaged and not served; the disk is full: writes are refused

400 MiB resident; buckets may use 4.00 GiB
  program       100 MiB   25.0 %
  buckets       300 MiB   75.0 %

7 connections, 2.00 KiB in their buffers

bucket      kind        items  resident    budget    used    hits  unflushed
orders\u{fffd}[2J  persistent   1000   300 MiB  1.00 GiB  29.3 %  90.0 %          5
";
        assert_eq!(page, expected);
    }

    #[test]
    fn an_empty_node_says_so() {
        let page = page("http://x:1", &json!({ "status": "ok" }), &json!({}), &json!({ "uptimeMs": 59_999 }))
            .unwrap();
        assert!(
            page.starts_with("http://x:1: ok, up 59 s\n") && page.ends_with("no bucket and no database.\n"),
            "{page}"
        );
    }
}
