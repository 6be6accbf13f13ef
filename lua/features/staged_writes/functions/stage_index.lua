-- writes: return the unfinished writes of a queue, oldest first, for processes that complete abandoned ones.
-- KEYS 1 meta   -> packed rows {write, state, home, query, ms since the last change, pending queues, keep ms}
-- An expired write is deleted here with its remaining keys. Bound: WRITES_MAX writes, and QUEUES_SHOWN queues
-- of each.

local S = G.staging
local WRITES_MAX, QUEUES_SHOWN = 50, 100

G.export('writes', { 'allow-oom' }, function(keys)
  local q = G.queue(keys[1])
  local now, rows = G.now(q), {}
  for _, id in ipairs(redis.call('ZRANGE', q.writes, 0, WRITES_MAX - 1)) do
    local w = S.write(q, id)
    local h = redis.call('HMGET', w.manifest, 'state', 'home', 'query', 'at', 'keep')
    if h[1] then
      rows[#rows + 1] = { id, h[1], h[2] or '', h[3] or '', math.max(0, now - G.count_of(h[4] or nil)),
        S.queues_of(w, QUEUES_SHOWN), G.count_of(h[5] or nil) }
    elseif not S.delete_some(w) then
      S.finish(q, w, '', 0)
    end
  end
  return cmsgpack.pack(rows)
end)
