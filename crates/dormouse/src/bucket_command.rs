//! `dormouse bucket` and `dormouse backup`: the buckets of a running node.

use crate::bucket_options::{self, BucketOptions};
use crate::json_document::{list, name_of, number, pretty, text_of};
use crate::node_client::{Destruction, NodeArgs, Question, encoded, not_empty};
use crate::promotion::{self, Promote};
use crate::quantity::{bytes, percent};
use crate::terminal::{aligned, shown};
use anyhow::Context as _;
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
        #[command(flatten)]
        question: Question,
    },
    /// Show a bucket: memory, and each setting by the name of its option.
    #[command(after_help = "Example:
  dormouse bucket show orders")]
    Show {
        #[command(flatten)]
        bucket: BucketName,
        #[command(flatten)]
        question: Question,
    },
    /// Create a bucket.
    #[command(after_help = "Examples:
  dormouse bucket create sessions --type ephemeral --eviction nruEviction --memory 2GiB --user ada
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
        #[command(flatten)]
        destruction: Destruction,
    },
    /// Make the best of what is left the active of each vBucket, after its active was lost.
    #[command(
        after_help = "Asks the node and its peers (replication.peers) what they have of the bucket, has them promise a \
new term, and elects per vBucket the one that has every durable write that was acknowledged. It becomes the \
active, the others its replicas. If too few of them answer, nothing is changed.

Example:
  dormouse bucket promote orders --node db2.example:8091 --user ada --password-file password

The login must be valid at all of them; it needs to change the bucket and to see the node."
    )]
    Promote(Promote),
    /// Delete a bucket, with its files; its clients are disconnected.
    #[command(
        visible_alias = "drop",
        after_help = "Example:
  dormouse bucket delete sessions --yes --user ada --password-file password"
    )]
    Delete {
        #[command(flatten)]
        bucket: BucketName,
        #[command(flatten)]
        destruction: Destruction,
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
        BucketCommand::List { question } => question.print(BUCKETS, overview)?,
        BucketCommand::Show { bucket, question } => question.print(&bucket.path(), page)?,
        BucketCommand::Create { bucket, options, node } => {
            let form = [&[("name", bucket.bucket.clone())], options.fields()].concat();
            node.client()?.send(Method::POST, BUCKETS, &form, &bucket_options::fields())?;
            done("created", bucket)?;
        }
        BucketCommand::Edit { bucket, options, node } => {
            let form = not_empty(options.fields().to_vec())?;
            node.client()?.send(Method::POST, &bucket.path(), &form, &bucket_options::fields())?;
            done("changed", bucket)?;
        }
        BucketCommand::Flush { bucket, destruction } => {
            let what = format!("deletes all documents of the bucket {}", shown(&bucket.bucket));
            let client = destruction.confirmed(&what, "", &bucket.bucket)?;
            client.send(Method::POST, &format!("{}/controller/doFlush", bucket.path()), &[], &[])?;
            done("flushed", bucket)?;
        }
        BucketCommand::Promote(arguments) => promotion::run(arguments)?,
        BucketCommand::Delete { bucket, destruction } => {
            let what = format!("deletes the bucket {}", shown(&bucket.bucket));
            let client = destruction.confirmed(&what, " with all documents and files", &bucket.bucket)?;
            client.delete(&bucket.path())?;
            done("deleted", bucket)?;
        }
    }
    Ok(())
}

/// Runs `dormouse backup`.
pub fn backup(arguments: &Backup) -> anyhow::Result<()> {
    let Backup { bucket, label, json, node } = arguments;
    let form: Vec<_> = label.iter().map(|label| ("label", label.clone())).collect();
    let path = format!("{}/backup", bucket.path());
    let answer = node.client()?.send(Method::POST, &path, &form, &[("label", "--label")])?;
    let document: Value = serde_json::from_str(&answer.body).with_context(|| format!("{path}: no JSON"))?;
    crate::print(&if *json { pretty(&document)? } else { shown(text_of(&document, "directory")) + "\n" })
}

fn done(what: &str, bucket: &BucketName) -> anyhow::Result<()> {
    crate::print(&format!("bucket {} {what}\n", shown(&bucket.bucket)))
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
