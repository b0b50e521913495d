"""As much of JSON Schema as the API's description uses, to check documents against it."""

from typing import Any

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
KNOWN = {
    *(
        "$ref",
        "type",
        "description",
        "examples",
        "format",
        "contentEncoding",
        "enum",
        "const",
        "default",
        "oneOf",
        "anyOf",
    ),
    *("items", "prefixItems", "minItems", "maxItems", "properties", "required", "additionalProperties"),
    *("maxProperties", "minimum", "maximum", "maxLength", "pattern", "deprecated"),
}


class Shapes:
    """The schemas of one description."""

    def __init__(self, description: Any) -> None:
        self._description = description

    def resolve(self, node: Any) -> Any:
        while "$ref" in node:
            at = self._description
            for step in node["$ref"].removeprefix("#/").split("/"):
                at = at[step]
            node = at
        return node

    def faults(self, schema: Any, value: Any, path: str = "$") -> list[str]:
        """What is wrong with a value, nothing if it fits."""
        schema = self.resolve(schema)
        assert schema.keys() <= KNOWN, f"unchecked: {schema.keys() - KNOWN}"
        if "oneOf" in schema:
            fits = [not self.faults(option, value, path) for option in schema["oneOf"]]
            return [] if sum(fits) == 1 else [f"{path}: fits {sum(fits)} of the options"]
        if "anyOf" in schema and not any(not self.faults(option, value, path) for option in schema["anyOf"]):
            return [f"{path}: fits none of the options"]
        faults = [] if _is_of_type(schema, value) else [f"{path}: {value!r} is not {schema['type']}"]
        if value not in schema.get("enum", [value]) or value != schema.get("const", value):
            faults.append(f"{path}: {value!r} is not one of the values")
        if not faults and isinstance(value, dict):
            faults += self._object_faults(schema, value, path)
        if not faults and isinstance(value, list):
            faults += self._array_faults(schema, value, path)
        return faults

    def _object_faults(self, schema: Any, value: dict[str, Any], path: str) -> list[str]:
        faults = [f"{path}: {name} is missing" for name in schema.get("required", ()) if name not in value]
        properties, rest = schema.get("properties", {}), schema.get("additionalProperties", {})
        for name, item in value.items():
            if name in properties:
                faults += self.faults(properties[name], item, f"{path}.{name}")
            elif rest is False:
                faults.append(f"{path}: {name} is not described")
            else:
                faults += self.faults(rest, item, f"{path}.{name}")
        return faults

    def _array_faults(self, schema: Any, value: list[Any], path: str) -> list[str]:
        places = schema.get("prefixItems", [])
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            return [f"{path}: has {len(value)} items"]
        faults = []
        for index, item in enumerate(value):
            shape = places[index] if index < len(places) else schema.get("items", {})
            faults += self.faults(shape, item, f"{path}[{index}]")
        return faults


def _is_of_type(schema: Any, value: Any) -> bool:
    if "type" not in schema:
        return True
    words = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    if isinstance(value, bool):
        return "boolean" in words
    return any(isinstance(value, TYPES[word]) for word in words)
