"""The keywords of a JSON schema that hold schemas themselves."""

MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions"})  # names -> schemas
ONE = frozenset({"items", "additionalProperties"})  # a schema
LISTS = frozenset({"prefixItems", "allOf", "anyOf", "oneOf"})  # a list of schemas
