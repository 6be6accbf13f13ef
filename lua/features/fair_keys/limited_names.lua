-- Limits per job name: the jobs of a name with limits have a fair key of ours, NAME_PREFIX and the name, so its limits
-- are those of a fair key. Such jobs get the key when they are added, or, if a peer added them, they were added before the
-- limits, or they have a priority, a rank or `lifo`, when a fetch first considers them. Jobs with a fair key or an ordering
-- group of their own keep it. Queues without such limits pay one local test per add call and per fetched job.

local JOB = G.rows.new_job
local NAME, ID, PRIORITY, LIFO = JOB.name, JOB.id, JOB.priority, JOB.lifo
local ORDERING, RANK, FAIR = JOB.ordering, JOB.rank, JOB.fair
local F = G.fair

local FEATURE = 'name-limits:0.2.0'
local NAME_PREFIX = '\0name:'

-- Remember whether the queue has, or had, limits per name. features: the set of its features.
F.note_names = function(q, features) q.limits_names = features[FEATURE] == true end

F.use_names = function(q)
  F.use(q)
  G.use_feature(q, FEATURE)
end

F.key_of_name = function(name) return NAME_PREFIX .. name end

-- Return the key of a name with limits, else nil.
local function limited_key(q, name)
  local key = F.key_of_name(name)
  return redis.call('HEXISTS', q.fair_limits, key) == 1 and key or nil
end

-- Give the rows of an add the keys of their names.
F.add_names = function(q, rows)
  local features = rawget(q, 'features')
  if not (features and features[FEATURE]) then return end
  local known = {}
  for i = 1, #rows do
    local row = rows[i]
    if not (row[FAIR] or row[ORDERING] or row[RANK]) and row[LIFO] ~= 1 and (row[PRIORITY] or 0) == 0 then
      local name = row[NAME]
      if known[name] == nil then known[name] = limited_key(q, name) or false end
      if known[name] then row[ID], row[FAIR] = row[ID] or '', known[name] end
    end
  end
end

-- Move a ready job to the key of its name, if that has limits. Return whether it has moved.
F.move_to_name = function(q, id, name, priority)
  local key = limited_key(q, name)
  if not key then return false end
  G.set(q, id, 'fairKey', key)
  F.put_back(q, id, key, priority)
  return true
end
