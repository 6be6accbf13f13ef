-- Fetch LIFO jobs: the list is pushed and popped at its right end (a source of core/fetch.lua).
-- G.list_source (core/fetch_sources.lua) pops, G.place (core/enqueue.lua) pushes.

G.sources.lifo = G.list_source('lifo')
