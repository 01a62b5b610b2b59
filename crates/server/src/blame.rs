//! The words in which a server says how a client's connection failed. The texts of [`LinkError`] are for clients, so
//! their subject is the memory server.

use hanare_wire::LinkError;

/// Returns what the client did, as the end of a sentence whose subject is the client.
pub(crate) fn what_it_did(error: &LinkError) -> String {
    match error {
        LinkError::Silent { seconds } => format!("said nothing for {seconds} s"),
        LinkError::Closed => "closed the connection".to_owned(),
        LinkError::TimedOut => "acknowledged nothing for too long".to_owned(),
        LinkError::Garbage { what } => format!("sent garbage ({what})"),
        LinkError::Refused { reason } => format!("was refused: {reason}"),
        LinkError::Version { theirs, ours } => format!("speaks wire version {theirs}, this server version {ours}"),
        error => format!("was lost: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_not_called_a_memory_server() {
        let (what, reason) = ("a lie", "no room".to_owned());
        for error in [
            LinkError::Silent { seconds: 3 },
            LinkError::Closed,
            LinkError::TimedOut,
            LinkError::Garbage { what },
            LinkError::Refused { reason },
            LinkError::Version { theirs: 1, ours: 2 },
        ] {
            let words = what_it_did(&error);
            assert!(!words.contains("the memory server") && !words.contains("look at its log"), "{words}");
        }
    }
}
