-- Schema 8: an object that was converted is found by the put that wrote what it says. Of all others that is their version.
CREATE INDEX objects_converted ON objects (written) WHERE written <> version;
