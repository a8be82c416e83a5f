"""The metadata quorum: Raft as KIP-595 pulls it, with pre-vote and voters that change."""
