-- Fetch LIFO jobs: the list is pushed and popped at its right end (a source of core/fetch.lua).

G.sources.lifo = G.list_source('lifo')
