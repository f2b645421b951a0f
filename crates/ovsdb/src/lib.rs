//! OVSDB databases: schemas, values, rows, transactions, monitors and files, without sockets, threads or clocks.
//!
//! A value is the same packed bytes everywhere ([`cell`]): in rows, in requests, in conditions, in history. Requests
//! are parsed directly from their JSON text, replies are written directly to the output.
#![forbid(unsafe_code)]

pub mod atom;
pub mod base_type;
pub mod cell;
mod changes;
pub mod column_type;
pub mod condition;
pub mod database;
pub mod error;
pub mod file;
mod hashing;
mod hexadecimal;
pub mod history;
mod index;
pub mod member_order;
pub mod members;
mod monitor;
pub mod mutation;
mod reference;
pub mod row;
pub mod schema;
pub mod server;
mod table;
pub mod transaction;
pub mod uuid;
