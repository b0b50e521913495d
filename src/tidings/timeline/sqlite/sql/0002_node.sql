-- What the owner of the file says of itself, for whoever asks a process that stands by: JSON.
ALTER TABLE lease ADD COLUMN node BLOB;
