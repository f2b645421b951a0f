"""The commands that ask and change a running node, and the full-screen view of one, on real terminals."""
