"""The pure algebra: specs, boxes, layouts, plans and their proof; standard library and numpy only."""
