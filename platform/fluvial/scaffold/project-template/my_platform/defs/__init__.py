"""Components, written in YAML: `dg scaffold defs fluvial.orchestration.components.History …` begins one."""
