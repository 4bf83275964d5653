"""Wire messages of package gemstream.v1 and the code generated from them; nothing else lives here."""
