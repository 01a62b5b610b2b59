//! Checks the documents: each command of a page is run and prints what the page shows, each link leads somewhere, and
//! each page has its place in the site. CONTRIBUTING.md says how a page is written.

mod blocks;
mod links;
mod pages;
mod reference;
mod shell;
