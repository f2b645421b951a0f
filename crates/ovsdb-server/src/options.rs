//! The stock command line: long options that may be abbreviated, options after operands, and the stock error texts.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

/// The argument that an option takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Takes {
    Nothing,
    Value,
    /// Only as `--name=VALUE` (or, short, as `-vVALUE`).
    Perhaps,
}

/// How an option is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// It works as in the stock server.
    Served,
    /// It has no effect, and a log line says why.
    Accepted(&'static str),
    /// It ends the process with this reason.
    Refused(&'static str),
}

use Takes::{Nothing, Perhaps, Value};
use Treatment::{Accepted, Refused, Served};

const NO_REPLICATION: &str = "replication is not supported by this server";
const NO_REPLAY: &str = "replay files are not supported by this server";

/// Every option of the stock server (3.1 to 3.7).
const OPTIONS: &[(&str, Takes, Treatment)] = &[
    ("remote", Value, Served),
    ("run", Value, Served),
    ("unixctl", Value, Served),
    ("no-dbs", Nothing, Served),
    ("config-file", Value, Refused("configuration files are not supported by this server")),
    ("detach", Nothing, Served),
    ("no-chdir", Nothing, Served),
    ("no-self-confinement", Nothing, Accepted("this server does not confine itself")),
    ("monitor", Nothing, Served),
    ("pidfile", Perhaps, Served),
    ("overwrite-pidfile", Nothing, Served),
    ("user", Value, Served),
    ("umask", Value, Served),
    ("verbose", Perhaps, Served),
    ("log-file", Perhaps, Served),
    ("syslog-method", Value, Accepted("messages go to the local system log")),
    ("syslog-target", Value, Served),
    ("help", Nothing, Served),
    ("version", Nothing, Served),
    ("private-key", Value, Served),
    ("certificate", Value, Served),
    ("ca-cert", Value, Served),
    ("bootstrap-ca-cert", Value, Served),
    ("peer-ca-cert", Value, Served),
    ("ssl-protocols", Value, Served),
    ("ssl-ciphers", Value, Served),
    ("ssl-ciphersuites", Value, Served),
    ("ssl-server-name", Value, Served),
    ("sync-from", Value, Refused(NO_REPLICATION)),
    ("sync-exclude-tables", Value, Refused(NO_REPLICATION)),
    ("active", Nothing, Accepted("this server is always active")),
    ("record", Perhaps, Refused(NO_REPLAY)),
    ("replay", Perhaps, Refused(NO_REPLAY)),
    ("disable-file-column-diff", Nothing, Accepted("column differences are always written")),
    // Of this server only.
    ("limit-message-bytes", Value, Served),
    ("limit-depth", Value, Served),
    ("limit-sessions", Value, Served),
    ("limit-backlog-bytes", Value, Served),
    ("limit-client-bytes", Value, Served),
    ("disable-file-no-data-conversion", Nothing, Accepted("conversions always write the data")),
];

/// Short options and what they stand for.
const SHORT: &[(char, &str)] = &[
    ('h', "help"),
    ('V', "version"),
    ('v', "verbose"),
    ('p', "private-key"),
    ('c', "certificate"),
    ('C', "ca-cert"),
];

/// An error in the command line, as the stock server prints it after its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake(pub String);

/// An option as given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// Its full name.
    pub name: &'static str,
    /// Its value.
    pub value: Option<String>,
    /// How it is treated.
    pub treatment: Treatment,
}

/// A parsed command line.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CommandLine {
    /// The options in order.
    pub options: Vec<Given>,
    /// The rest.
    pub operands: Vec<String>,
}

/// Parses a command line, without the program's name.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<CommandLine, Mistake> {
    let mut line = CommandLine::default();
    let mut arguments = arguments.into_iter().map(|argument| {
        String::from_utf8(argument.into_vec())
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    });
    while let Some(argument) = arguments.next() {
        if argument == "--" {
            line.operands.extend(arguments);
            break;
        }
        if let Some(text) = argument.strip_prefix("--") {
            let (name, value) = match text.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (text, None),
            };
            let (name, takes, treatment) = find(name, &argument)?;
            let value = match (takes, value) {
                (Nothing, Some(_)) => {
                    return Err(Mistake(format!("option '--{name}' doesn't allow an argument")));
                }
                (Value, None) => Some(
                    arguments
                        .next()
                        .ok_or_else(|| Mistake(format!("option '--{name}' requires an argument")))?,
                ),
                (_, value) => value,
            };
            line.options.push(Given { name, value, treatment });
        } else if argument.len() > 1
            && let Some(text) = argument.strip_prefix('-')
        {
            short(text, &mut arguments, &mut line)?;
        } else {
            line.operands.push(argument);
        }
    }
    Ok(line)
}

type Option3 = (&'static str, Takes, Treatment);

/// The option with this name, or the only one with this prefix.
fn find(name: &str, argument: &str) -> Result<Option3, Mistake> {
    if let Some(option) = OPTIONS.iter().find(|option| option.0 == name) {
        return Ok(*option);
    }
    let fitting: Vec<&Option3> = OPTIONS.iter().filter(|option| option.0.starts_with(name)).collect();
    match fitting.as_slice() {
        [] => Err(Mistake(format!("unrecognized option '{argument}'"))),
        [only] => Ok(**only),
        several => {
            let names: Vec<String> = several.iter().map(|option| format!("'--{}'", option.0)).collect();
            Err(Mistake(format!("option '{argument}' is ambiguous; possibilities: {}", names.join(" "))))
        }
    }
}

/// Parses a word of short options.
fn short(
    text: &str,
    arguments: &mut impl Iterator<Item = String>,
    line: &mut CommandLine,
) -> Result<(), Mistake> {
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        let name = SHORT.iter().find(|(short, _)| *short == letter).map(|(_, name)| *name);
        let Some((name, takes, treatment)) =
            name.and_then(|name| OPTIONS.iter().find(|option| option.0 == name)).copied()
        else {
            return Err(Mistake(format!("invalid option -- '{letter}'")));
        };
        let rest = letters.as_str();
        let value = match takes {
            Nothing => None,
            Perhaps if rest.is_empty() => None,
            Value if rest.is_empty() => Some(
                arguments
                    .next()
                    .ok_or_else(|| Mistake(format!("option requires an argument -- '{letter}'")))?,
            ),
            _ => Some(rest.to_owned()),
        };
        let ends = takes != Nothing;
        line.options.push(Given { name, value, treatment });
        if ends {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<CommandLine, String> {
        parse(line.split_whitespace().map(OsString::from)).map_err(|mistake| mistake.0)
    }

    #[test]
    fn options_may_be_short_abbreviated_and_behind_operands() {
        let line = of("a --det -vfile:dbg b --remote x --rem=y -v --pidfile z -- --run").unwrap();
        let shown: Vec<String> = line
            .options
            .iter()
            .map(|given| format!("{}={}", given.name, given.value.as_deref().unwrap_or("-")))
            .collect();
        assert_eq!(shown, ["detach=-", "verbose=file:dbg", "remote=x", "remote=y", "verbose=-", "pidfile=-"]);
        assert_eq!(line.operands, ["a", "b", "z", "--run"]);
    }

    #[test]
    fn mistakes_have_the_stock_words() {
        assert_eq!(of("--nope").unwrap_err(), "unrecognized option '--nope'");
        assert_eq!(of("--nope=3").unwrap_err(), "unrecognized option '--nope=3'");
        assert_eq!(of("-z").unwrap_err(), "invalid option -- 'z'");
        assert_eq!(of("-p").unwrap_err(), "option requires an argument -- 'p'");
        assert_eq!(of("--remote").unwrap_err(), "option '--remote' requires an argument");
        assert_eq!(of("--detach=1").unwrap_err(), "option '--detach' doesn't allow an argument");
        assert_eq!(
            of("--re=punix:x").unwrap_err(),
            "option '--re=punix:x' is ambiguous; possibilities: '--remote' '--record' '--replay'"
        );
    }
}
