//! The table of keys for readers: a commented TOML file, and the reference page.

use super::keys::rows;
use super::{Config, check};
use std::fmt::Write as _;

const WIDTH: usize = 100;

/// `dormouse config default`: every key at its default, with its description and allowed values.
pub fn default_toml() -> String {
    let mut out = String::from(
        "# Dormouse configuration: every key with its default. Leave out what you do not change.\n\
         # Check a file with `dormouse config check FILE`. Flags of `dormouse serve` go over the file, there too.\n\
         # Keys marked [reload] are applied by SIGHUP; others by a restart.\n\
         # Sizes: bytes, or a number with KiB, MiB, GiB, TiB or k, m, g, t (powers of 1024), or KB, MB, GB, TB (of \
         1000).\n",
    );
    for section in rows() {
        out.push('\n');
        comment(&mut out, section.about);
        let (open, close) = if section.repeated { ("[[", "]]") } else { ("[", "]") };
        let _ = writeln!(out, "{open}{}{close}", section.name);
        for key in section.keys {
            out.push('\n');
            comment(&mut out, key.about);
            let reload = if key.reload { " [reload]" } else { "" };
            comment(&mut out, &format!("Allowed: {}.{reload}", key.allowed));
            if let Some(why) = &key.missing {
                comment(&mut out, &format!("Not here: {why}."));
            }
            let off = if key.missing.is_some() { "# " } else { "" };
            let _ = writeln!(out, "{off}{} = {}", key.name, key.default);
        }
    }
    out
}

/// `docs/configuration.md`.
pub fn reference_markdown() -> String {
    let mut out = String::from(
        "# Configuration\n\n\
         <!-- Made by `dormouse config reference` from the table of keys; a test compares. Do not edit. -->\n\n\
         A node is configured by defaults, then the TOML file of `--config`, then the flags of `dormouse serve`.\n\
         `dormouse config default` prints a complete commented file, `dormouse config check FILE` checks one, with the \
         same flags.\n\
         Unknown keys and values that are not allowed are refused with one line that names file, line, key, value and \
         what is allowed.\n\
         Keys with *reload* are applied by SIGHUP; a change of any other key is logged as needing a restart.\n\n\
         A size is a number of bytes, or a string with a number and `KiB`, `MiB`, `GiB`, `TiB` or `k`, `m`, `g`, `t` \
         (powers of 1024),\n\
         or `KB`, `MB`, `GB`, `TB` (powers of 1000); case does not matter.\n",
    );
    for section in rows() {
        let (open, close) = if section.repeated { ("[[", "]]") } else { ("[", "]") };
        let _ = write!(out, "\n## `{open}{}{close}`\n\n{}\n\n", section.name, section.about);
        out.push_str("| key | default | allowed | reload | meaning |\n|---|---|---|---|---|\n");
        for key in section.keys {
            let reload = if key.reload { "yes" } else { "" };
            let allowed = key.allowed.replace('|', "\\|");
            let _ = writeln!(
                out,
                "| `{}` | `{}` | {allowed} | {reload} | {} |",
                key.name, key.default, key.about
            );
        }
    }
    out
}

/// Describes in one line what a configuration would serve.
pub fn summary(config: &Config) -> String {
    let buckets: Vec<&str> = config.buckets.iter().map(|bucket| bucket.name.as_str()).collect();
    let listeners: Vec<String> =
        check::listeners(config).iter().map(|(key, address)| format!("{} {address}", shown(key))).collect();
    let databases: Vec<String> = config
        .databases
        .iter()
        .filter_map(|database| database.file.as_ref())
        .map(|file| file.display().to_string())
        .collect();
    let databases = match databases.as_slice() {
        [] => String::new(),
        files => format!(" and the OVSDB databases {}", files.join(", ")),
    };
    format!("correct; serves {} with the buckets {}{databases}", listeners.join(", "), buckets.join(", "))
}

/// The name of a port in the summary, from the key of its address.
fn shown(key: &str) -> String {
    key.trim_end_matches(".address").replace(".tls_address", " with TLS")
}

fn comment(out: &mut String, text: &str) {
    let mut line = String::from("#");
    for word in text.split_whitespace() {
        if line.len() + 1 + word.len() > WIDTH {
            out.push_str(&line);
            out.push('\n');
            line = String::from("#");
        }
        line.push(' ');
        line.push_str(word);
    }
    out.push_str(&line);
    out.push('\n');
}
