-- Fetch parked jobs of ordering groups that have free slots (a source of core/fetch.lua), and push the others to the
-- stream.


-- Parked jobs that one call pushes to the stream.
local PROMOTIONS_MAX = 1000

-- A job that its handler put behind the others has a score that is not its sequence.
local function has_its_turn(q, g, id)
  local seq = G.count_of(redis.call('HGET', q.J .. id, 'orderingSeq'))
  return seq > 0 and seq <= g.nextSeq
end

-- Return the id and score of the first parked job that may run now; nil if there is none.
local function next_parked(q, fetching, g)
  local M = G.groups
  if M.is_full(g) and not M.head_holds_slot(q, g) then return nil end
  local id, score = G.member_at(g.queue, 0)
  local seq = G.num(score)
  if not id or M.limited_until(q, g, fetching.now) then return nil end
  if g.nextSeq > 0 and seq > g.nextSeq then
    M.skip_marked(g)
    if seq > g.nextSeq and not has_its_turn(q, g, id) then return nil end
  end
  return id, seq
end

-- Fetch parked jobs of groups that have free slots again. Such a group is listed by the step of this call that freed
-- the slot. rejections: how many jobs this call may still reject. Return how many were fetched, whether no more can be
-- fetched, and how many were rejected.
local function fetch_parked(q, fetching, name, free, rejections)
  local fetched, rejected = 0, 0
  local g = G.groups.group(q, name)
  for _ = 1, free + rejections do
    if rejected >= rejections or fetched >= free or fetching.bytes >= G.REPLY_BYTES then return fetched, false, rejected end
    local id, seq = next_parked(q, fetching, g)
    if not id then return fetched, true, rejected end
    fetching.parked_by = nil
    if G.activate(q, fetching, id, '') then
      fetched = fetched + 1
    elseif fetching.parked_by then
      return fetched, true, rejected -- parked again until its time comes
    else
      rejected = rejected + 1
      redis.call('ZREM', g.queue, id)
      if not G.exists(q, id) then G.groups.mark_skip(g, seq) end
    end
  end
  return fetched, false, rejected
end

-- Most groups with free slots have no parked jobs: check many of them with one command.
local GROUPS_PAGE = 25

local function drop_empty_groups(q, fetching)
  local all, left, base = fetching.groups, {}, q.P .. 'groupq:'
  for from = 1, #all, GROUPS_PAGE do
    local to, keys = math.min(from + GROUPS_PAGE - 1, #all), {}
    for i = from, to do keys[#keys + 1] = base .. all[i] end
    local some = redis.call('EXISTS', unpack(keys)) > 0
    for i = from, to do
      if some then
        left[#left + 1] = all[i]
      else
        fetching.group_listed[all[i]] = nil
      end
    end
  end
  fetching.groups = left
  return left
end

G.sources.groups = function(q, fetching, free)
  if #fetching.groups == 0 then return true end
  local groups = drop_empty_groups(q, fetching)
  local rejections = G.REJECTIONS_MAX
  fetching.from_groups = true
  for _ = 1, #groups do
    if free <= 0 then break end
    local name = G.first(groups)
    local fetched, empty, rejected = fetch_parked(q, fetching, name, free, rejections)
    free, rejections = free - fetched, rejections - rejected
    if not empty then break end
    table.remove(groups, 1)
    fetching.group_listed[name] = nil
  end
  fetching.from_groups = false
  return #groups == 0
end

-- Push parked jobs that this call could not fetch to the stream, for other workers. A group that exceeds the limit of
-- this call is listed as a group whose rate limit has ended.
G.promote_groups = function(q, fetching)
  if #fetching.groups == 0 then return end
  local M, room = G.groups, PROMOTIONS_MAX
  for _, name in ipairs(drop_empty_groups(q, fetching)) do
    local g = M.group(q, name)
    if room > 0 then room = room - M.promote_parked(q, g, fetching.now, room) else M.limit_until(q, g, 1, 'NX') end
  end
  fetching.groups, fetching.group_listed = {}, {}
end

-- ------------------------------------------------------------------ limits that end: `ratelimited` has the time of each

local M = G.groups

local GROUPS_MAX = 100

-- Return milliseconds until the rate limit of a group ends (0 = now), or -1.
M.next_limited = function(q, now)
  local _, score = G.member_at(q.ratelimited, 0)
  return score and math.max(0, G.clamped_time(score) - now) or -1
end

-- Add groups whose rate limit has ended to the ready groups. Return the value of next_limited.
M.end_limits = function(q, fetching)
  local wait = M.next_limited(q, fetching.now)
  if wait < 0 then return wait end
  G.repair_times(q.ratelimited, G.TIME_MAX, 0)
  wait = M.next_limited(q, fetching.now)
  if wait ~= 0 then return wait end
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', q.ratelimited, '-inf', fetching.now_text, 'LIMIT', 0, GROUPS_MAX)) do
    redis.call('ZREM', q.ratelimited, name)
    -- it may be listed because more sequences were to be skipped than one call does
    M.skip_marked(M.group(q, name))
    G.add_ready_group(fetching, name)
  end
  return M.next_limited(q, fetching.now)
end
