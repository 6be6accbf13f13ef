-- What the functions of staged writes share: names of keys, states, ends (docs/reference/functions.md, "Staged writes").
-- A write is put down in pieces by several processes, decided in one step, and published as jobs piece by piece.
-- Each queue that it touches has a manifest of it; the decision stands in that of one queue, its home.
-- Everything of a write expires: before the decision after the writer's own time, after it in KEEP.

local S = G.staging

S.KEEP = 30 * 86400000 -- what is decided waits this long for somebody to publish it
S.AT_ONCE = 100 -- lists deleted in one call

-- w: manifest, attempts that have staged, winners by place, queues beside the home; `list` of an attempt.
S.write = function(q, id)
  local stem = q.P .. 'write:' .. id
  return { id = id, manifest = stem, tried = stem .. ':tried', won = stem .. ':won', queues = stem .. ':queues' }
end

S.list = function(w, attempt) return w.manifest .. ':try:' .. attempt end

-- Of a streaming query: the number of its last micro-batch that was decided.
local function ledger(q, query) return q.P .. 'write-stream:' .. query end

-- Where the write stands: open, prepared, committed, done, aborted; 'absent' = never begun, or run out.
S.state = function(q, w, query, batch)
  local state = redis.call('HGET', w.manifest, 'state')
  if state then return state end
  if query ~= '' then
    local last = tonumber(redis.call('GET', ledger(q, query)) or '')
    if last and batch <= last then return 'done' end
  end
  return 'absent'
end

-- The index lives as long as anything that may stand in it, and not for ever where nobody comes any more.
S.enlist = function(q, w, now)
  redis.call('ZADD', q.writes, now, w.id)
  redis.call('PEXPIRE', q.writes, S.KEEP)
end

-- keep: for how long its end shall be remembered.
S.begin = function(q, w, home, query, ttl, keep)
  local now = G.int(G.now(q))
  redis.call('HSET', w.manifest, 'state', 'open', 'home', home, 'query', query, 'at', now,
    'keep', G.int(keep))
  S.enlist(q, w, now)
  S.prolong(w, ttl)
end

S.prolong = function(w, ttl)
  redis.call('PEXPIRE', w.manifest, ttl)
  redis.call('PEXPIRE', w.tried, ttl)
  redis.call('PEXPIRE', w.queues, ttl)
end

S.remember_batch = function(q, query, batch, keep)
  redis.call('SET', ledger(q, query), G.int(batch), 'PX', keep)
end

-- Delete the lists of some attempts; true if there may be more.
S.drop_some = function(w)
  local attempts = redis.call('SPOP', w.tried, S.AT_ONCE)
  for i = 1, #attempts do redis.call('UNLINK', S.list(w, attempts[i])) end
  return #attempts == S.AT_ONCE
end

-- keep: ms for which the end is remembered, so that whoever comes late is turned away; 0 = not at all.
S.finish = function(q, w, state, keep)
  redis.call('ZREM', q.writes, w.id)
  redis.call('UNLINK', w.tried, w.won, w.queues)
  if keep > 0 then
    redis.call('HSET', w.manifest, 'state', state)
    redis.call('PEXPIRE', w.manifest, keep)
  else
    redis.call('UNLINK', w.manifest)
  end
end
