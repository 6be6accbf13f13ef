-- writes: the writes of a queue that have not ended, oldest first, for whoever finishes what another left.
-- KEYS 1 meta   -> packed rows {write, state, home, query, ms since anything moved, queues still to come, keep ms}
-- What has run out by itself is struck off here, with what may be left of it. Bound: LOOK writes.

local S = G.staging
local LOOK = 50

G.export('writes', { 'allow-oom' }, function(keys)
  local q = G.queue(keys[1])
  local now, rows = G.now(q), {}
  for _, id in ipairs(redis.call('ZRANGE', q.writes, 0, LOOK - 1)) do
    local w = S.write(q, id)
    local h = redis.call('HMGET', w.manifest, 'state', 'home', 'query', 'at', 'keep')
    if h[1] then
      rows[#rows + 1] = { id, h[1], h[2] or '', h[3] or '', math.max(0, now - G.count_of(h[4] or nil)),
        redis.call('SMEMBERS', w.queues), G.count_of(h[5] or nil) }
    elseif not S.drop_some(w) then
      S.finish(q, w, '', 0)
    end
  end
  return cmsgpack.pack(rows)
end)
