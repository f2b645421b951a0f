//! `dormouse bucket` and `dormouse backup`: the buckets of a running node.

use crate::bucket_options::{self, BucketOptions};
use crate::json_document::{list, name_of, number, text_of};
use crate::node_client::{NodeArgs, encoded, not_empty};
use crate::quantity::{bytes, percent};
use crate::terminal::{aligned, confirm, shown};
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use serde_json::Value;
use ureq::http::Method;

const BUCKETS: &str = "/pools/default/buckets";

/// What to do with buckets.
#[derive(Debug, Subcommand)]
pub enum BucketCommand {
    /// List the buckets: type, items, memory.
    #[command(after_help = "Examples:
  dormouse bucket list
  dormouse bucket list --json | jq -r '.[].name'")]
    List {
        /// Print JSON: the node's answer
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Show a bucket: memory, and each setting by the name of its option.
    #[command(after_help = "Example:
  dormouse bucket show orders")]
    Show {
        #[command(flatten)]
        bucket: BucketName,
        /// Print JSON: the node's answer
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Create a bucket.
    #[command(after_help = "Examples:
  dormouse bucket create sessions --type ephemeral --memory 2GiB --user ada --password-file password
  dormouse bucket create orders --memory 4GiB --durability majority --flush-enabled true --user ada

An option may be shortened as far as it is unique. What is not given has the node's default.")]
    Create {
        #[command(flatten)]
        bucket: BucketName,
        #[command(flatten)]
        options: BucketOptions<true>,
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Change settings of a bucket while it is served.
    #[command(after_help = "Examples:
  dormouse bucket edit sessions --memory 3GiB --user ada --password-file password
  dormouse bucket edit orders --flush-enabled false --compression active --user ada

An option may be shortened as far as it is unique. For a persistent bucket the change is kept; if the
node's configuration names the bucket, its settings apply again at the next start.")]
    Edit {
        #[command(flatten)]
        bucket: BucketName,
        #[command(flatten)]
        options: BucketOptions<false>,
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Delete all documents of a bucket whose flush-enabled is true.
    #[command(after_help = "Example:
  dormouse bucket flush sessions --yes --user ada --password-file password")]
    Flush {
        #[command(flatten)]
        bucket: BucketName,
        /// Do not ask for the bucket's name
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Delete a bucket, with its files; its clients are disconnected.
    #[command(
        visible_alias = "drop",
        after_help = "Example:
  dormouse bucket delete sessions --yes --user ada --password-file password"
    )]
    Delete {
        #[command(flatten)]
        bucket: BucketName,
        /// Do not ask for the bucket's name
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        node: NodeArgs,
    },
}

/// The name of a bucket.
#[derive(Debug, Args)]
pub struct BucketName {
    /// The bucket's name
    #[arg(value_name = "BUCKET", value_parser = NonEmptyStringValueParser::new())]
    pub bucket: String,
}

/// Options of `dormouse backup`.
#[derive(Debug, Args)]
#[command(
    after_help = "The copy is complete and on disk when the command ends; it is in the node's data directory, and the \
directory is printed. Copy it to another disk, then remove it.

Examples:
  dormouse backup orders --label monday --user ada --password-file password
  dormouse journal verify /var/lib/dormouse/backups/orders/monday
  dormouse journal restore /var/lib/dormouse/backups/orders/monday /var/lib/dormouse    while the node is stopped"
)]
pub struct Backup {
    #[command(flatten)]
    bucket: BucketName,
    /// Name of the copy [default: the seconds since 1970]
    #[arg(long)]
    label: Option<String>,
    /// Print JSON: the node's answer
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: NodeArgs,
}

impl BucketName {
    /// The path of its resource.
    pub fn path(&self) -> String {
        format!("{BUCKETS}/{}", encoded(&self.bucket))
    }
}

/// Runs a command about buckets.
pub fn run(command: &BucketCommand) -> anyhow::Result<()> {
    match command {
        BucketCommand::List { json, node } => {
            let document = node.client()?.json(BUCKETS)?;
            crate::print(&if *json { pretty(&document)? } else { overview(&document) });
        }
        BucketCommand::Show { bucket, json, node } => {
            let document = node.client()?.json(&bucket.path())?;
            crate::print(&if *json { pretty(&document)? } else { page(&document) });
        }
        BucketCommand::Create { bucket, options, node } => {
            let form = [&[("name", bucket.bucket.clone())], options.fields()].concat();
            node.client()?.send(Method::POST, BUCKETS, &form, bucket_options::option_of)?;
            done("created", bucket);
        }
        BucketCommand::Edit { bucket, options, node } => {
            let form = not_empty(options.fields().to_vec())?;
            node.client()?.send(Method::POST, &bucket.path(), &form, bucket_options::option_of)?;
            done("changed", bucket);
        }
        BucketCommand::Flush { bucket, yes, node } => {
            let client = node.client()?;
            let what =
                format!("deletes all documents of the bucket {} at {}", shown(&bucket.bucket), client.base());
            confirm(&what, &bucket.bucket, *yes)?;
            client.send(Method::POST, &format!("{}/controller/doFlush", bucket.path()), &[], |_| None)?;
            done("flushed", bucket);
        }
        BucketCommand::Delete { bucket, yes, node } => {
            let client = node.client()?;
            let what = format!(
                "deletes the bucket {} at {} with all documents and files",
                shown(&bucket.bucket),
                client.base()
            );
            confirm(&what, &bucket.bucket, *yes)?;
            client.delete(&bucket.path())?;
            done("deleted", bucket);
        }
    }
    Ok(())
}

/// Runs `dormouse backup`.
pub fn backup(arguments: &Backup) -> anyhow::Result<()> {
    let Backup { bucket, label, json, node } = arguments;
    let form: Vec<_> = label.iter().map(|label| ("label", label.clone())).collect();
    let option_of = |field: &str| (field == "label").then(|| "--label".to_owned());
    let answer = node.client()?.send(Method::POST, &format!("{}/backup", bucket.path()), &form, option_of)?;
    let document: Value = serde_json::from_str(&answer.body)?;
    crate::print(&if *json { pretty(&document)? } else { shown(text_of(&document, "directory")) + "\n" });
    Ok(())
}

fn done(what: &str, bucket: &BucketName) {
    crate::print(&format!("bucket {} {what}\n", shown(&bucket.bucket)));
}

/// A document for scripts.
pub fn pretty(document: &Value) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(document)? + "\n")
}

/// What `bucketType` says, by the word that creates it.
fn kind(document: &Value) -> &str {
    match text_of(document, "bucketType") {
        "membase" => "persistent",
        other => other,
    }
}

fn overview(document: &Value) -> String {
    let titles = ["bucket", "type", "eviction", "items", "resident", "budget", "used"].map(str::to_owned);
    let row = |bucket: &Value| {
        let (resident, budget) = (number(bucket, "/basicStats/residentBytes"), number(bucket, "/quota/ram"));
        [
            shown(&name_of(bucket)),
            shown(kind(bucket)),
            shown(text_of(bucket, "evictionPolicy")),
            number(bucket, "/basicStats/itemCount").to_string(),
            bytes(resident),
            bytes(budget),
            percent(resident, budget),
        ]
    };
    let rows: Vec<_> = std::iter::once(titles).chain(list(Some(document)).map(row)).collect();
    if rows.len() == 1 {
        "There is no bucket, or none that this user may see.\n".to_owned()
    } else {
        aligned(&rows, 3)
    }
}

fn page(document: &Value) -> String {
    let (resident, budget) = (number(document, "/basicStats/residentBytes"), number(document, "/quota/ram"));
    let mut rows = vec![
        ["bucket".to_owned(), shown(&name_of(document))],
        ["items".to_owned(), number(document, "/basicStats/itemCount").to_string()],
        ["resident".to_owned(), format!("{}, {} of its budget", bytes(resident), percent(resident, budget))],
        ["memory".to_owned(), bytes(budget)],
    ];
    for (option, field) in bucket_options::settings() {
        let value = match document.get(field) {
            Some(Value::String(_)) if field == "bucketType" => kind(document).to_owned(),
            Some(Value::String(word)) => word.clone(),
            Some(value) => value.to_string(),
            None => continue,
        };
        rows.push([option.to_owned(), shown(&value)]);
    }
    aligned(&rows, 2)
}
