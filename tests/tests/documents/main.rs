//! Checks the documents: each command of a page is run and prints what the page shows, and each link leads
//! somewhere. CONTRIBUTING.md says how a page is written.

mod blocks;
mod links;
mod pages;
mod reference;
mod shell;
