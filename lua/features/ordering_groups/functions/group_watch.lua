-- blocked_groups: return ordering groups that a peer's own library may have blocked: when it revokes, removes or
-- rejects a job, it leaves a sequence without a job, or a slot without a holder. The caller checks and repairs them.
-- KEYS 1 meta   ARGV 1 packed {holder, hold ms, blocked ms, full ms, cursor, peers}
-- -> packed {names, cursor ('' = the end)}
-- A group is reported when it has parked jobs, is not rate limited, and has not changed for `blocked ms` (`full ms` if
-- all its slots are taken: most such groups are only busy); then again after twice that time, and so on, up to an hour.
-- Nothing is read while another holder has the lock, or if the queue has no peers: `peers` = 1 (their library is loaded),
-- or a worker of theirs has been registered within a day.
-- Bound: a page of about 200 groups, 50 names.

local M = G.groups

local PAGE, NAMES = 200, 50
local REPEATED_MS = 3600000

-- Return the fields that change when the group runs a job; nil if no job is parked or the group is limited.
local function progress_of(q, name, g)
  local first = G.first(G.pcall('ZRANGE', g.queue, 0, 0))
  if not first or redis.call('ZSCORE', q.ratelimited, name) then return nil end
  return G.int(g.nextSeq) .. ',' .. G.int(g.active) .. ',' .. first
end

-- Return whether the group is to be reported now. `group-watch` stores: start|times reported|these fields.
local function is_blocked(q, r, name, now)
  local g = M.group(q, name)
  local progress, seen = progress_of(q, name, g), redis.call('HGET', q.group_watch, name)
  if not progress then
    if seen then redis.call('HDEL', q.group_watch, name) end
    return false
  end
  local since, times, before = G.match(seen, '^(%d+)|(%d+)|(.*)$')
  if before ~= progress or tonumber(since) > now then
    redis.call('HSET', q.group_watch, name, G.int(now) .. '|0|' .. progress)
    return false
  end
  local patience = (M.is_full(g) and r.full or r.blocked) * 2 ^ math.min(tonumber(times), 20)
  if now - tonumber(since) < math.min(patience, math.max(REPEATED_MS, r.full)) then return false end
  redis.call('HSET', q.group_watch, name, G.int(now) .. '|' .. G.int(tonumber(times) + 1) .. '|' .. progress)
  return true
end

G.export('blocked_groups', { 'allow-oom' }, function(q, a)
  local now, lock_key = G.now(q), q.lock_groups
  local nothing = { names = {}, cursor = '' }
  if redis.call('EXISTS', q.ordering) == 0 or a.peers == 0 and not G.had_peers(q, now) then return nothing end
  if redis.call('GET', lock_key) ~= a.holder and G.claim(lock_key, a.holder, a.hold) == 0 then
    return nothing
  end
  local names, found, after = {}, G.scan('HSCAN', q.ordering, a.cursor, PAGE)
  for i = 1, #found, 2 do
    if #names < NAMES and is_blocked(q, a, found[i], now) then names[#names + 1] = found[i] end
  end
  return { names = names, cursor = after }
end)
