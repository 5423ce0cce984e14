"""What a template of CloudFormation makes and refuses; moto knows neither rules nor patterns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

NOTHING = object()


class Stack:
    """A template with values for its parameters, as CloudFormation resolves it.

    Args:
        template: as a document.
        given: values of parameters, and of pseudo parameters such as `AWS::StackName`.

    """

    def __init__(self, template: dict[str, Any], given: dict[str, str]) -> None:
        self.template, self.parameters = template, template["Parameters"]
        defaults = {name: str(one.get("Default", "")) for name, one in self.parameters.items()}
        self.values = {**defaults, **given}

    def resolve(self, part: Any) -> Any:
        found = part
        match part:
            case {"Ref": "AWS::NoValue"}:
                found = NOTHING
            case {"Ref": name}:
                found = self.values.get(name, name)  # the name stands for a resource
                if self.parameters.get(name, {}).get("Type") == "Number":
                    found = int(found)
            case {"Fn::If": [name, yes, no]}:
                found = self.resolve(yes if self.holds({"Condition": name}) else no)
            case {"Fn::Sub": text}:
                found = re.sub(r"\$\{(.+?)}", lambda one: self.values.get(one[1], one[1]), text)
            case {"Fn::GetAtt": [name, _]}:
                found = name
            case dict():
                whole = {key: self.resolve(one) for key, one in part.items()}
                found = {key: one for key, one in whole.items() if one is not NOTHING}
            case list():
                found = [one for one in map(self.resolve, part) if one is not NOTHING]
        return found

    def holds(self, condition: dict[str, Any]) -> bool:
        ((kind, parts),) = condition.items()
        match kind:
            case "Condition":
                return self.holds(self.template["Conditions"][parts])
            case "Fn::Equals":
                return str(self.resolve(parts[0])) == str(self.resolve(parts[1]))
            case "Fn::Not":
                return not self.holds(parts[0])
            case "Fn::And":
                return all(map(self.holds, parts))
        assert kind == "Fn::Or"
        return any(map(self.holds, parts))

    def resources(self) -> dict[str, Any]:
        """Return the properties of the resources that it has."""
        return {
            name: self.resolve(one["Properties"])
            for name, one in self.template["Resources"].items()
            if "Condition" not in one or self.holds({"Condition": one["Condition"]})
        }

    def refusals(self) -> Iterator[str]:
        """Yield what CloudFormation says of the values."""
        for name, one in self.parameters.items():
            value = self.values[name]
            wrong = (
                value not in map(str, one.get("AllowedValues", [value])),
                re.search(one.get("AllowedPattern", ""), value) is None,
                "MinValue" in one and int(value) < one["MinValue"],
                "MaxValue" in one and int(value) > one["MaxValue"],
            )
            if any(wrong):
                yield f"{name}: {one.get('ConstraintDescription', one)}"
        for rule in self.template["Rules"].values():
            if self.holds(rule["RuleCondition"]):
                for one in rule["Assertions"]:
                    if not self.holds(one["Assert"]):
                        yield one["AssertDescription"]
