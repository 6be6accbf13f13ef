-- Find parents that wait although a child has ended: a Node peer's own library does not notify the parents of a child
-- that it fails or removes. A worker reads a page of parents that have waited for long, reads the results of their open
-- children in the children's queues, and passes them to `children_ended`, which counts each child once.
-- watch_children: KEYS 1 meta   ARGV 1 packed {age ms, pause ms, age and pause beside peers}
--   -> packed {rows, more 0|1, peers 0|1, batches 0|1}; peers: workers of a peer are registered, or were during the last
--   day; batches: the queue has unfinished batches (batch_watch)
--   row: {parent id, children not counted yet}; more: the end of the index was not reached
--   All callers share one cursor (`children-watch`). At the end of the index it pauses.
-- child_outcomes: KEYS 1 meta   ARGV 1 packed ids   -> packed {pending 0|1, rows}
--   row: {how, text, policy}, or false for an unfinished job. pending: the outbox of this queue has entries, so a
--   missing result may still be on its way. Bound: the ids.
local SCAN = G.rows.scan
local F = G.flows

local PARENTS, MEMBERS, KEPT_MS = 20, 100, 3600000

local function rank_of(q, c)
  if not c.id then return 0 end
  local rank = redis.call('ZRANK', q.waiting_children, c.id)
  if rank then return c.within ~= '0' and rank or rank + 1 end
  c.within = '0'
  return redis.call('ZCOUNT', q.waiting_children, '-inf', '(' .. c.score)
end

-- Return the uncounted children of one page of the parent's set, and how many were read. A parent that no longer waits
-- is removed from the index.
local function uncounted(q, c, id, now)
  local key, open = q.J .. id, {}
  local h = G.pick(key, 'state', 'building')
  if F.sweep_parent(q, id, h, now) or F.is_building(q, id, h.building) then
    c.within = '0'
    return open, 1
  end
  local page = redis.call('SSCAN', q.P .. 'deps:' .. id, c.within, 'COUNT', MEMBERS)
  local members = page[SCAN.found]
  c.within = page[SCAN.cursor]
  for _, member in ipairs(members) do
    -- A failed dependency that is still waited for has an outcome, and a retry deletes it.
    local open_one = redis.call('HEXISTS', key, 'depdone:' .. member) == 0
      and redis.call('HEXISTS', q.P .. 'depvals:' .. id, member) == 0
    if open_one then open[#open + 1] = member end
  end
  return open, 1 + #members
end

-- Read one page from the cursor on. Return true if it ends within the index.
local function page(q, c, now, oldest, rows)
  local rank, examined = rank_of(q, c), 0
  local found = redis.call('ZRANGE', q.waiting_children, rank, rank + PARENTS - 1, 'WITHSCORES')
  for i = 1, #found, 2 do
    local id, score = found[i], found[i + 1]
    if tonumber(score) > oldest then return false end
    local open, cost = uncounted(q, c, id, now)
    if #open > 0 then rows[#rows + 1] = G.new.waiting_parent({ parent = id, children = open }) end
    c.id, c.score, examined = id, score, examined + cost
    if c.within ~= '0' or examined >= MEMBERS then return true end
  end
  return #found == 2 * PARENTS
end

local function reply(q, rows, more, peers)
  return {
    rows = rows, more = more and 1 or 0, peers = peers and 1 or 0, batches = redis.call('EXISTS', q.batches),
  }
end

-- Return the minimum age of the parents to check, and the pause after the last page.
local function age_and_pause(r, peers)
  if peers then return r.peer_age, r.peer_pause end
  return r.age, r.pause
end

G.export('watch_children', { 'allow-oom' }, function(q, r)
  local key, now, rows = q.children_watch, G.now(q), {}
  if redis.call('EXISTS', q.waiting_children) == 0 then return reply(q, rows, false, false) end
  local peers = G.had_peers(q, now)
  local age, pause = age_and_pause(r, peers)
  local stored = redis.call('GET', key)
  local c = stored and cmsgpack.unpack(stored) or { at = 0, within = '0' }
  -- A longer pause was set before a peer came.
  if c.at > now and c.at <= now + pause then return reply(q, rows, false, peers) end
  local more = page(q, c, now, now - age, rows)
  if not more then c = { at = now + pause, within = '0' } end
  redis.call('SET', key, cmsgpack.pack(c), 'PX', KEPT_MS)
  return reply(q, rows, more, peers)
end)

-- Return how, text and policy of a job's end; nil if it has not ended.
F.outcome = function(q, id)
  local h = G.pcall('HMGET', q.J .. id, 'state', 'returnvalue', 'failedReason', 'opts')
  if h.err then return nil end
  local state, result, reason, opts = unpack(h)
  if not state then return F.REMOVED, 'it is gone', F.policy() end
  if state == 'completed' then return F.COMPLETED, result or 'null', 'fail_parent' end
  if state == 'failed' then return F.FAILED, reason or '', F.policy(opts) end
  return nil
end

G.export('child_outcomes', { 'no-writes' }, function(q, r)
  local rows = {}
  for i, id in ipairs(r.ids) do
    local how, text, policy = F.outcome(q, id)
    rows[i] = how and G.new.outcome({ how = how, text = text, policy = policy }) or false
  end
  return { outbox_pending = redis.call('XLEN', q.outbox) > 0 and 1 or 0, rows = rows }
end)
